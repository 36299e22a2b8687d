"""Everything that depends on interfaces of Keras that it does not promise to keep.

All of it holds for models of Keras 3 and of tf_keras, which goes on with Keras 2.
"""

from __future__ import annotations

from typing import Any

# The last one is tf_keras' alone.
_FUNCTION_NAMES = ("train_function", "test_function", "predict_function", "train_tf_function")


def resolves_auto_to_xla(model: Any) -> bool:
    """Whether `compile(jit_compile="auto")` would turn XLA on for the model, here and now.

    Keras 3 resolves "auto" in `compile` and keeps the result alone, so a model does not tell
    whether its `jit_compile=True` was asked for. tf_keras has no "auto" and resolves nothing.
    """
    resolve = getattr(model, "_resolve_auto_jit_compile", None)
    return resolve is not None and bool(resolve())


def compilation_of(model: Any) -> object:
    """An object that is replaced whenever the model is compiled; None before that."""
    return getattr(model, "_compile_config", None)


def functions_of(model: Any) -> dict[str, Any]:
    """The functions that `fit`, `evaluate` and `predict` call, by attribute.

    Returns:
        What `set_functions` takes; None stands for a function that has not been made.
    """
    return {name: getattr(model, name) for name in _FUNCTION_NAMES if hasattr(model, name)}


def set_functions(model: Any, functions: dict[str, Any]) -> None:
    """Gives the model functions that `functions_of` has returned for it."""
    for name, function in functions.items():
        setattr(model, name, function)


def drop_functions(model: Any) -> None:
    """Takes the functions off the model; Keras makes those again that it needs next."""
    set_functions(model, dict.fromkeys(functions_of(model)))


def make_functions_anew(model: Any) -> None:
    """Makes the functions that the model has again, as it is compiled now."""
    for name, function in functions_of(model).items():
        make = getattr(model, f"make_{name}", None)
        if function is not None and make is not None:
            make(force=True)


def fixed_batch_size(model: Any) -> int | None:
    """The batch size that the model's inputs state; None if they leave it open."""
    inputs = getattr(model, "inputs", None) or ()
    sizes = {tensor.shape[0] for tensor in inputs if len(tensor.shape)}
    return sizes.pop() if len(sizes) == 1 else None
