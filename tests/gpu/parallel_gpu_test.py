"""Layers divided over logical devices of one GPU: their numbers, not their speed."""

from __future__ import annotations

import pytest

from python.benchmarks.divided_training import FLOAT64_TOLERANCE, Comparison, compare, make_devices
from python.benchmarks.result_file import in_new_process


def train(device_count: int) -> list[Comparison]:
    return list(compare("LeNet-5", "float64", make_devices(device_count, "GPU")))


@pytest.mark.parametrize("count", [2, 4])
def test_a_training_step_on_logical_gpus_gives_the_same_numbers(count: int) -> None:
    for each in in_new_process(train, count):
        assert each.divided_count > 2, each
        assert each.moved <= FLOAT64_TOLERANCE, each
