"""Networks that train on several devices as on one."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from python.benchmarks.divided_training import (
    CASE,
    FLOAT64_TOLERANCE,
    Comparison,
    agrees,
    compare,
    make_devices,
)
from python.benchmarks.result_file import in_new_process
from tf_interop.parallel import sending_order
from tf_interop.parallel.layers import find

ROOT = pathlib.Path(__file__).resolve().parents[2]
PUBLISHED = ("data", "model", "one weird trick")
ONE_AXIS = ("height", "width", "channel")
BOTH = ("filter and channel", "height and width")


def train(name: str, dtype: str, device_count: int, wanted: tuple[str, ...]) -> list[Comparison]:
    # Also small filters are in shares, and each waits for the one before the last.
    find.LEAST_SHARED_BYTES = 256
    sending_order._LEAST_GROUP_BYTES = 1
    devices = make_devices(device_count)
    return list(compare(name, dtype, devices, wanted))


@pytest.mark.parametrize(
    ("name", "dtype", "device_count", "wanted"),
    [
        ("LeNet-5", "float32", 2, (*PUBLISHED, *ONE_AXIS, "random 0")),
        pytest.param(
            *("LeNet-5", "float64", 4, (*PUBLISHED, *ONE_AXIS, *BOTH, "random 1", "random 2")),
            marks=pytest.mark.slow,
        ),
        ("every padding", "float64", 4, (*ONE_AXIS, *BOTH, "random 0", "random 1", "random 2")),
        pytest.param(
            *("ResNet-8", "float64", 4, ("data", "channel", "random 0")), marks=pytest.mark.slow
        ),
        pytest.param(*("GoogLeNet", "float64", 4, ("random 1",)), marks=pytest.mark.slow),
    ],
)
def test_divided_training_gives_the_same_numbers(
    name: str, dtype: str, device_count: int, wanted: tuple[str, ...]
) -> None:
    compared = in_new_process(train, name, dtype, device_count, wanted)
    assert {each.strategy for each in compared} == set(wanted)
    tolerance = 1.0 if dtype == "float32" else FLOAT64_TOLERANCE
    for each in compared:
        assert each.divided_count > 2 and each.sent_mb > 0, each
        assert each.moved <= tolerance, each


def test_the_committed_result_is_within_rounding() -> None:
    result = ROOT / "docs" / "results" / "divided_training.json"
    rows: list[dict[str, Any]] = json.loads(result.read_text())["rows"]
    assert [each["network"] for each in rows] == list(CASE.networks)
    assert all(map(agrees, rows))
