"""The comparison of model-garden runs; `scripts/run_model_garden.sh` makes the runs."""

from __future__ import annotations

import click
import numpy as np
import pytest

from scripts.model_garden.compare_runs import compare

MOMENTUM = "model/kernel/.OPTIMIZER_SLOT/optimizer/momentum/.ATTRIBUTES/VARIABLE_VALUE"


def momentum(first: float) -> dict[str, np.ndarray]:
    return {MOMENTUM: np.array([first, 1.0], np.float32)}


def test_a_gradient_off_by_more_than_rounding_is_too_far() -> None:
    stock, without_onednn = momentum(1.0), momentum(1.0 + 1e-5)
    near = compare(stock, momentum(1.0 + 3e-5), without_onednn)["momenta"]
    far = compare(stock, momentum(1.0 + 3e-4), without_onednn)["momenta"]
    assert near["share_of_tolerance"] < 1 < far["share_of_tolerance"]
    assert far["tensors"] == 1
    assert far["plugin"] == pytest.approx(3e-4 / np.sqrt(2), rel=1e-2)
    assert far["onednn"] == pytest.approx(1e-5 / np.sqrt(2), rel=1e-1)


def test_refuses_momenta_without_a_gradient() -> None:
    nothing = {MOMENTUM: np.zeros(2, np.float32)}
    with pytest.raises(click.ClickException, match="Expected gradients in every momentum"):
        compare(nothing, nothing, nothing)
