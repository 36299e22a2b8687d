"""Models of volumes, from the traced function to training with stages."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_interop
from tf_interop.convolution import ConvolutionKind
from tf_interop.keras import ConvStages
from tf_interop.model.collect import CollectOptions, collect_configurations
from tf_interop.profile.tables import describe_convolution

pytestmark = pytest.mark.usefixtures("plugin_as_after_import")

RANDOM = np.random.default_rng(0)
VOLUMES = RANDOM.random((10, 4, 8, 8, 3), dtype=np.float32)
LABELS = RANDOM.random((10, 2), dtype=np.float32)


def _model_of_volumes() -> Any:
    """Three branches of other depths, the same weights every time."""
    volumes = tf.keras.Input((4, 8, 8, 3))
    branches = [
        tf.keras.layers.Conv3D(4, size, padding="same", activation="relu", name=f"branch_{i}")(
            volumes
        )
        for i, size in enumerate([(1, 3, 3), (3, 3, 3), (3, 1, 1)])
    ]
    x = tf.keras.layers.Concatenate()(branches)
    x = tf.keras.layers.Conv3D(4, 2, strides=2, name="down")(x)
    x = tf.keras.layers.GlobalAveragePooling3D()(x)
    model = tf.keras.Model(volumes, tf.keras.layers.Dense(2)(x), name="volumes")
    random = np.random.default_rng(1)
    model.set_weights([random.normal(0, 0.3, weight.shape) for weight in model.get_weights()])
    model.compile(optimizer="sgd", loss="mse")
    return model


def _fit(model: Any, *callbacks: Any) -> list[float]:
    history = model.fit(
        VOLUMES,
        LABELS,
        batch_size=4,
        epochs=2,
        shuffle=False,
        verbose=0,
        callbacks=list(callbacks),
    ).history
    return list(history["loss"])


def _wide_stages() -> list[set[str]]:
    """The op types of the stages with several lanes, of the last graph."""
    return [
        {node.rsplit("/", 1)[-1] for node in stage.nodes}
        for stage in tf_interop.status().plan.graphs[-1].stages
        if len(stage.stage.lanes) > 1
    ]


def test_a_model_of_volumes_trains_as_without_stages() -> None:
    stock, model = _model_of_volumes(), _model_of_volumes()
    tf_interop.disable()
    expected = _fit(stock)
    before = tf_interop.status().counters.stages_run
    losses = _fit(model, ConvStages("always", verbose=0))
    # Two epochs of three steps, each with stages forward and backward.
    assert tf_interop.status().counters.stages_run - before >= 2 * 3 * 2
    assert len(_wide_stages()) >= 2
    # oneDNN adds up in another order: some of float32's roundings, carried on for six steps.
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    for ours, theirs in zip(model.get_weights(), stock.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_model_of_volumes_predicts_with_fused_stages() -> None:
    model = _model_of_volumes()
    tf_interop.disable()
    expected = model.predict(VOLUMES, verbose=0)
    result = model.predict(VOLUMES, verbose=0, callbacks=[ConvStages("always", verbose=0)])
    assert _wide_stages()
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def test_volumes_are_collected_in_both_layouts(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _model_of_volumes().save("volumes.keras")
    options = CollectOptions(batch_sizes=(2,), training=True, layouts=("NHWC", "NCHW"))
    listed = collect_configurations(["volumes.keras"], options).configurations.convolutions
    configurations = [each.configuration for each in listed]
    assert {each.kind for each in configurations} == set(ConvolutionKind)
    assert {each.layout for each in configurations} == {"NDHWC", "NCDHW"}
    described = [describe_convolution(each) for each in configurations]
    assert "forward 2x4x8x8x3 * 3x3x3x3x4 NDHWC float32 +BiasAdd +Relu" in described
    assert "forward 2x12x4x8x8 * 2x2x2x12x4 /2 VALID NCDHW float32" in " ".join(described)
