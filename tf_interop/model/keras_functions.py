"""Traces the functions of Keras models: inference, and one step of training."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_interop import tensorflow_internals

_KERAS_MODULES = ("keras", "tf_keras")
_LEARNING_RATE = 0.01
_IMAGE_RANK = 4


@dataclasses.dataclass(frozen=True)
class KerasFunction:
    """A traced function of a model.

    Attributes:
        program: a tf.function, which a program calls with one argument, `inputs`.
        function: its concrete function.
        inputs: `tf.TensorSpec`s in the structure of the model's inputs, every dimension known.
    """

    program: Any
    function: Any
    inputs: Any
    notes: tuple[str, ...]


def keras_of(value: object) -> Any:
    """The Keras module (Keras 3 or tf_keras) of a model; None for any other value."""
    for name in _KERAS_MODULES:
        module = sys.modules.get(name)
        # A half-imported Keras 3, or a stub of that name, has no Model.
        model_type = getattr(module, "Model", None)
        if isinstance(model_type, type) and isinstance(value, model_type):
            return module
    return None


def trace_keras(
    model: Any,
    batch_size: int,
    image_size: tuple[int, int] | None,
    *,
    training: bool,
    jit_compile: bool | None = None,
) -> KerasFunction:
    """Traces `model(inputs, training=False)`, or one step of gradient descent.

    The step is forward, backward and update in one function, and running it changes the model. The
    loss is the cross-entropy with constant labels if the model returns class probabilities, else
    the mean of squares of its outputs.

    Raises:
        ValueError: the shapes of the inputs are unknown, or there is nothing to train.
    """
    specs, notes = _input_specs(model, batch_size, image_size)
    if training:
        program, more_notes = _training_step(model, tf.nest.flatten(specs)[0].shape[0])
        notes += more_notes
    else:

        def program(inputs: Any) -> Any:
            return model(inputs, training=False)

    function = tf.function(program, jit_compile=jit_compile)
    return KerasFunction(function, function.get_concrete_function(specs), specs, notes)


def _training_step(model: Any, batch_size: int) -> tuple[Callable[[Any], Any], tuple[str, ...]]:
    keras = keras_of(model)
    variables = model.trainable_variables
    if not variables:
        raise ValueError(
            f"The model '{model.name}' has no trainable variables. Analyze it without training."
        )
    optimizer = keras.optimizers.SGD(_LEARNING_RATE)
    optimizer.build(variables)
    classes = _class_count(model)
    notes: tuple[str, ...] = ()
    labels = None
    if classes is None:
        notes = ("the training step's loss is the mean of squares of the model's outputs",)
    else:
        labels = tf.constant([index % classes for index in range(batch_size)])

    def training_step(inputs: Any) -> Any:
        with tf.GradientTape() as tape:
            outputs = model(inputs, training=True)
            if labels is None:
                loss = _mean_of_squares(outputs)
            else:
                [output] = tf.nest.flatten(outputs)
                loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(labels, output))
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(
            [pair for pair in zip(gradients, variables, strict=True) if pair[0] is not None]
        )
        return loss

    return training_step, notes


def fill_shape(spec: Any, batch_size: int, image_size: tuple[int, int] | None) -> Any:
    """Fills in the unknown dimensions of a `tf.TensorSpec`.

    Raises:
        ValueError: a dimension stays unknown, such as height and width without `image_size`.
    """
    name = f"input '{spec.name}'" if spec.name else "an input"
    if spec.shape.rank is None:
        raise ValueError(
            f"The rank of {name} is unknown. Pass a tf.function whose input signature states it."
        )
    shape = spec.shape.as_list()
    if shape and shape[0] is None:
        shape[0] = batch_size
    if None in shape and len(shape) == _IMAGE_RANK:
        height = 2 if shape[3] is None else 1
        unknown = [axis for axis, size in enumerate(shape) if size is None]
        if set(unknown) <= {height, height + 1}:
            if image_size is None:
                raise ValueError(
                    f"The image size of {name} is unknown: {spec.shape}. Pass "
                    "image_size=(height, width)."
                )
            for axis in unknown:
                shape[axis] = image_size[axis - height]
    if None in shape:
        raise ValueError(
            f"More than the batch and the image size of {name} is unknown: {spec.shape}. Pass a "
            "tf.function whose input signature states the shape."
        )
    return tf.TensorSpec(shape, spec.dtype, spec.name)


def check_image_size(subject: str, specs: Any, image_size: tuple[int, int] | None) -> None:
    """Checks that one of several inputs may have an image size.

    Args:
        subject: what the inputs belong to.
        specs: any structure; what is no `tf.TensorSpec` has no size.
        image_size: None checks nothing.

    Raises:
        ValueError: none of them may.
    """
    shapes = [spec.shape for spec in tf.nest.flatten(specs) if isinstance(spec, tf.TensorSpec)]
    if image_size is not None and not any(
        shape.rank == _IMAGE_RANK and shape[first : first + 2].is_compatible_with(image_size)
        for shape in shapes
        for first in (1, 2)
    ):
        raise ValueError(
            f"{subject} does not accept image_size={image_size}, only inputs of "
            f"{', '.join(map(str, shapes))}. Leave image_size out."
        )


def _input_specs(
    model: Any, batch_size: int, image_size: tuple[int, int] | None
) -> tuple[Any, tuple[str, ...]]:
    """Specs of the model's inputs with every dimension known, and notes."""
    keras = keras_of(model)
    backend = getattr(keras, "config", keras).backend if keras.__name__ == "keras" else None
    if backend is not None and backend() != "tensorflow":
        raise ValueError(
            f"Keras runs on its backend '{backend()}', not on TensorFlow. Set "
            "KERAS_BACKEND=tensorflow."
        )
    declared = _declared_inputs(model)
    flat = tf.nest.flatten(declared)
    specs = tf.nest.map_structure(lambda spec: fill_shape(spec, batch_size, image_size), declared)
    check_image_size(f"The model '{model.name}'", declared, image_size)
    fixed = {spec.shape[0] for spec in flat if spec.shape[0] not in (None, batch_size)}
    notes = tuple(f"the model fixes the batch size at {size}" for size in sorted(fixed))
    return specs, notes


def _declared_inputs(model: Any) -> Any:
    """Specs of the model's inputs, in their structure."""
    if getattr(model, "inputs", None):
        # A Sequential model of Keras 3 has one input, but no `input` before its first call.
        return tf.nest.map_structure(
            lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype, tensor.name),
            getattr(model, "input", model.inputs[0]),
        )
    # A subclassed model was built for the shapes of its first call, with any batch size.
    built = tensorflow_internals.built_input_shape(model)
    if built is None:
        raise ValueError(
            f"The model '{model.name}' does not state its inputs before a call. First call it on a "
            "batch of data, or pass a tf.function with an input signature that calls the model."
        )

    def spec_of(shape: Any) -> Any:
        if isinstance(shape, dict):
            return {name: spec_of(each) for name, each in shape.items()}
        if not all(size is None or isinstance(size, int) for size in shape):
            return type(shape)(map(spec_of, shape))
        return tf.TensorSpec([None, *shape[1:]], tf.as_dtype(tf.keras.backend.floatx()))

    return spec_of(built)


def _class_count(model: Any) -> int | None:
    """The number of class probabilities that the model returns; None if it returns others."""
    outputs: Any = getattr(model, "outputs", None) or ()
    if len(outputs) != 1 or len(outputs[0].shape) != 2:
        return None
    classes = outputs[0].shape[1]
    return classes if classes is not None and classes > 1 else None


def _mean_of_squares(outputs: Any) -> Any:
    return tf.add_n(
        [
            tf.reduce_mean(tf.square(tf.cast(output, tf.float32)))
            for output in tf.nest.flatten(outputs)
            if tf.as_dtype(output.dtype).is_floating
        ]
    )
