"""Arguments to call a function with that nobody gave: zeros, of the shapes that it asks for."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

_IMAGE_RANK = 4


def fill_shape(spec: Any, batch_size: int, image_size: tuple[int, int] | None) -> Any:
    """Puts sizes in for the dimensions of a tensor that are left open.

    Args:
        spec: a `tf.TensorSpec`.
        batch_size: the first dimension.
        image_size: height and width, for tensors of rank 4.

    Returns:
        The `tf.TensorSpec` with every dimension known.

    Raises:
        ValueError: a dimension stays open. Says what to pass.
    """
    what = f"input '{spec.name}'" if spec.name else "an input"
    if spec.shape.rank is None:
        raise ValueError(
            f"Expected {what} to have a known rank, got none. Pass a tf.function whose input "
            "signature states it."
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
                    f"Expected {what} to have a known image size, got {spec.shape}. Pass "
                    "image_size=(height, width)."
                )
            for axis in unknown:
                shape[axis] = image_size[axis - height]
    if None in shape:
        raise ValueError(
            f"Expected {what} to have known dimensions, batch and image size aside, got "
            f"{spec.shape}. Pass a tf.function whose input signature states them."
        )
    return tf.TensorSpec(shape, spec.dtype, spec.name)


def zeros(spec: Any) -> Any:
    """Zeros of a `tf.TensorSpec` with every dimension known.

    Raises:
        ValueError: tensors of that dtype have no zero.
    """
    if spec.dtype in (tf.resource, tf.variant):
        raise ValueError(
            f"Expected inputs of numbers or strings, got {spec.dtype.name} for input "
            f"'{spec.name}'. Capture it in a tf.function instead."
        )
    return tf.zeros(spec.shape, spec.dtype)
