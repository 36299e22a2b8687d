"""Loads the model that a command-line argument names."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import os
import pathlib
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import h5py  # Keras and tf_keras require it
import tensorflow as tf
from google.protobuf import message, text_format
from tensorflow.core.framework import graph_pb2

from tf_interop.errors import did_you_mean
from tf_interop.model.keras_functions import keras_of

_KERAS_SUFFIXES = (".keras", ".h5", ".hdf5")
_GRAPH_SUFFIXES = (".pb", ".pbtxt")

_ACCEPTED = (
    "the name of a Keras application (ResNet50), a .keras or .h5 file, the folder of a "
    "SavedModel, a GraphDef in a .pb or .pbtxt file, or module:function"
)


class ModelArgumentError(ValueError):
    """An argument that names no model, or a model that cannot be loaded."""


def load_model(
    model: str, *, image_size: tuple[int, int] | None = None, dtype: str | None = None
) -> Any:
    """Loads or builds a model.

    Args:
        model: one of these.

            - The name of a model of `tf.keras.applications`, which is built with random weights. It
              takes precedence over a folder of that name.
            - A `.keras`, `.h5` or `.hdf5` file with a Keras model.
            - The folder of a SavedModel: its serving signature, or its only one.
            - A `.pb` or `.pbtxt` file with a GraphDef.
            - `module:function`: the result of calling the function without arguments, or the value
              itself if it is a model or a tf.function. The working directory is searched too.
        image_size: height and width of the images for a Keras application, or for a function that
            has an argument of that name; None leaves them to the model.
        dtype: Keras' policy for a model that is built here; None leaves it to the model.

    Returns:
        A Keras model, a concrete function, a tf.function or a GraphDef.

    Raises:
        ModelArgumentError: there is no such model, or it does not load with that dtype or at all.
    """
    if dtype is None:
        return _load(model, image_size)
    if model not in _application_names() and (":" not in model or pathlib.Path(model).exists()):
        raise ModelArgumentError(
            f"The dtype {dtype} needs a model that is built here, a Keras application or "
            f"module:function; the file '{model}' fixes its dtypes. Leave the dtype out "
            "(on the command line: --dtype or --precision)."
        )
    mixed_precision = tf.keras.mixed_precision
    before = mixed_precision.global_policy()
    mixed_precision.set_global_policy(dtype)
    try:
        return _load(model, image_size)
    finally:
        mixed_precision.set_global_policy(before)


def _load(model: str, image_size: tuple[int, int] | None) -> Any:
    application_names = _application_names()
    if model in application_names:
        return _build_application(model, image_size)
    path = pathlib.Path(model)
    if path.is_dir():
        return _load_saved_model(path)
    if path.suffix in _KERAS_SUFFIXES:
        return _load_keras_file(path)
    if path.suffix in _GRAPH_SUFFIXES:
        return _load_graph_def(path)
    module, colon, function = model.partition(":")
    if colon and not path.exists():
        return _call_function(module, function, image_size)
    if path.is_file():
        program = " To run a program, call tf-interop run." * (path.suffix == ".py")
        raise ModelArgumentError(f"The file '{model}' is no model. Expected {_ACCEPTED}.{program}")
    raise ModelArgumentError(
        f"Model not found: '{model}'.{did_you_mean(model, application_names)} Expected {_ACCEPTED}."
    )


def check_trains(loaded: Any, model: str) -> None:
    """Refuses a training step of anything but a Keras model."""
    if keras_of(loaded) is None:
        raise ModelArgumentError(
            f"--training needs a Keras model, but '{model}' is not one. Name a function that "
            "trains instead."
        )


@contextlib.contextmanager
def _refused(what: str, remedy: str, *errors: type[Exception]) -> Iterator[None]:
    """Turns these errors into a ModelArgumentError that says what is wrong."""
    try:
        yield
    except errors as error:
        raise ModelArgumentError(f"{what}: {_in_short(error)}. {remedy}") from error


def _build_application(name: str, image_size: tuple[int, int] | None) -> Any:
    shape = {} if image_size is None else {"input_shape": (*image_size, 3)}
    what = f"{name} does not accept this image size"
    with _refused(what, "Pass another --image-size.", ValueError):
        return getattr(tf.keras.applications, name)(weights=None, **shape)


def _application_names() -> list[str]:
    """The models of `tf.keras.applications`; its other members are modules, in lower case."""
    applications = tf.keras.applications
    return [
        name
        for name in dir(applications)
        if name[0].isupper() and callable(getattr(applications, name))
    ]


def _load_keras_file(path: pathlib.Path) -> Any:
    if path.suffix != ".keras":
        _refuse_code_in_hdf5(path)
    remedy = (
        "Save it with model.save(...); if it has layers of your own, name a function that loads "
        "it, as module:function."
    )
    # Keras' readers and the constructors of layers may raise anything.
    with _refused(f"'{path}' is not a whole Keras model", remedy, Exception):
        return tf.keras.models.load_model(path, compile=False)


def _refuse_code_in_hdf5(path: pathlib.Path) -> None:
    """Refuses Lambda layers: tf_keras would run the Python code in the file on load.

    Keras itself refuses a file that is not HDF5, or has no model.
    """
    try:
        with h5py.File(path, "r") as file:
            config = json.loads(file.attrs["model_config"])
    except (OSError, KeyError, ValueError, RecursionError):
        return
    waiting = [config]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict) and value.get("class_name") == "Lambda":
            raise ModelArgumentError(
                f"The model in '{path}' has a Lambda layer, which contains Python code. If you "
                "trust the file, name a function that loads it, as module:function."
            )
        if isinstance(value, (dict, list)):
            waiting += value.values() if isinstance(value, dict) else value


def _load_saved_model(path: pathlib.Path) -> Any:
    if not tf.saved_model.contains_saved_model(path):
        raise ModelArgumentError(
            f"The folder '{path}' is not a SavedModel. Name the folder that saved_model.pb is in."
        )
    kinds = (tf.errors.OpError, OSError, ValueError, KeyError)
    with _refused(f"The SavedModel '{path}' cannot be loaded", "Export it again.", *kinds):
        loaded = tf.saved_model.load(path)
    signatures = loaded.signatures
    key = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY
    if key not in signatures and len(signatures) != 1:
        raise ModelArgumentError(
            f"The SavedModel '{path}' needs one signature, or one named '{key}', but has "
            f"{sorted(signatures)}. Name a function that loads it and returns one of its "
            "functions, as module:function."
        )
    function = signatures[key] if key in signatures else next(iter(signatures.values()))
    # The function alone does not keep its variables alive.
    function.saved_model = loaded
    return function


def _load_graph_def(path: pathlib.Path) -> graph_pb2.GraphDef:
    graph_def = graph_pb2.GraphDef()
    remedy = "For a SavedModel, name its folder."
    kinds = (message.DecodeError, text_format.ParseError, UnicodeDecodeError, OSError)
    with _refused(f"'{path}' is not a GraphDef", remedy, *kinds):
        if path.suffix == ".pbtxt":
            text_format.Parse(path.read_text("utf-8"), graph_def)
        else:
            graph_def.ParseFromString(path.read_bytes())
    if not graph_def.node:
        raise ModelArgumentError(f"The GraphDef in '{path}' has no nodes. {remedy}")
    return graph_def


def _call_function(module_name: str, function_name: str, image_size: tuple[int, int] | None) -> Any:
    if "" not in sys.path and os.getcwd() not in sys.path:  # noqa: PTH109 (entries are strings)
        sys.path.insert(0, "")
    name = f"{module_name}:{function_name}"
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise _raised_by_code(name, error) from error
        raise ModelArgumentError(
            f"The module '{module_name}' cannot be imported: {error}. Run from the folder that it "
            "is in, or install it."
        ) from error
    except (Exception, SystemExit) as error:
        raise _raised_by_code(name, error) from error
    if not hasattr(module, function_name):
        raise ModelArgumentError(
            f"The module '{module_name}' has no '{function_name}'."
            f"{did_you_mean(function_name, vars(module))}"
        )
    value = getattr(module, function_name)
    if _is_model(value):
        return value
    try:
        if image_size is not None and "image_size" in inspect.signature(value).parameters:
            return value(image_size=image_size)
        return value()
    except (tf.errors.ResourceExhaustedError, MemoryError):
        raise  # no fault of the code, and callers handle it
    except (Exception, SystemExit) as error:
        raise _raised_by_code(name, error) from error


def _raised_by_code(name: str, error: BaseException) -> ModelArgumentError:
    """An error for an exception in the code of a model, with its line."""
    place = ""
    if not isinstance(error, SyntaxError):  # names the line itself
        *_, last = traceback.extract_tb(error.__traceback__)
        if last.filename != __file__:
            place = f" ({pathlib.Path(last.filename).name}, line {last.lineno})"
    return ModelArgumentError(f"'{name}' failed with {_in_short(error)}{place}. Correct its code.")


def _is_model(value: Any) -> bool:
    """Whether `load_model` returns `value` itself and does not call it."""
    kinds = (
        tf.types.experimental.ConcreteFunction,
        tf.types.experimental.PolymorphicFunction,
        graph_pb2.GraphDef,
    )
    return isinstance(value, kinds) or keras_of(value) is not None


def _in_short(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
