"""Which combinations of algorithms a pair is measured with, and how they are counted afterwards."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
from profile_values import GPU, KERNEL, LARGE, SMALL, make_profile, make_stage
from tf_interop.profile.tables import describe_pairs

from tf_interop.convolution import ConvolutionConfiguration
from tf_interop.measure.choose_algorithms import combinations_for_pair
from tf_interop.profile.entries import (
    AlgorithmMeasurement,
    KernelMeasurement,
    StageMeasurement,
)

# Fills an SM's registers with two blocks; fills its shared memory with two blocks.
REGISTERS = dataclasses.replace(
    KERNEL,
    grid=(1000, 1, 1),
    block=(128, 1, 1),
    registers_per_thread=248,
    shared_memory_bytes=1024,
    time_share=1.0,
)
SHARED_MEMORY = dataclasses.replace(
    REGISTERS, registers_per_thread=32, shared_memory_bytes=100 * 1024
)


def _alone(
    configuration: ConvolutionConfiguration,
    algorithm: str,
    latency_us: float,
    *kernels: KernelMeasurement,
) -> AlgorithmMeasurement:
    return AlgorithmMeasurement(
        configuration, algorithm, False, latency_us, 0.1, 0, None, True, kernels, "made up"
    )


def _names(pairs: list[tuple[AlgorithmMeasurement, AlgorithmMeasurement]]) -> list[str]:
    return [f"{first.algorithm} {second.algorithm}" for first, second in pairs]


def test_combines_the_fastest_and_orders_by_time_where_no_kernel_is_known() -> None:
    first = [_alone(SMALL, name, us) for name, us in (("eng0", 10), ("eng1", 11), ("eng2", 50))]
    second = [_alone(LARGE, name, us) for name, us in (("eng0", 10), ("eng1", 30), ("eng2", 31))]
    assert _names(combinations_for_pair(first, second, None, at_most_each=2)) == [
        "eng0 eng0", "eng1 eng0", "eng0 eng1", "eng1 eng1",
    ]  # fmt: skip
    assert len(combinations_for_pair(first, second, GPU, at_most_each=3)) == 9


def test_prefers_algorithms_that_fill_different_resources() -> None:
    first = [
        _alone(SMALL, "eng0", 10, REGISTERS),
        _alone(SMALL, "eng1", 12, REGISTERS),
        _alone(SMALL, "eng2", 14, SHARED_MEMORY),
    ]
    second = [_alone(LARGE, "eng0", 10, REGISTERS), _alone(LARGE, "eng1", 13, SHARED_MEMORY)]
    # By time alone the second would be "eng1 eng0".
    assert _names(combinations_for_pair(first, second, GPU, at_most_each=3))[:4] == [
        "eng0 eng0", "eng0 eng1", "eng1 eng1", "eng2 eng0",
    ]  # fmt: skip


def test_what_takes_no_time_does_not_count() -> None:
    short = dataclasses.replace(REGISTERS, time_share=0.01)
    long = dataclasses.replace(SHARED_MEMORY, time_share=0.99)
    first = [_alone(SMALL, "eng0", 10, REGISTERS), _alone(SMALL, "eng1", 11, short, long)]
    second = [_alone(LARGE, "eng0", 10, REGISTERS), _alone(LARGE, "eng1", 10.5, REGISTERS)]
    assert _names(combinations_for_pair(first, second, GPU, at_most_each=2))[1] == "eng1 eng0"


def _pair(first: str, second: str, latency_us: float, **lanes: Any) -> StageMeasurement:
    return make_stage(
        *((SMALL, first), (LARGE, second)),
        latency_us=latency_us,
        sequential_us=20.0,
        spread_us=0.5,
        **lanes,
    )


ALONE = [
    _alone(configuration, algorithm, latency_us)
    for configuration in (SMALL, LARGE)
    for algorithm, latency_us in (("eng0", 8.0), ("eng1", 9.0))
]


@pytest.mark.parametrize(
    ("stages", "counts"),
    [
        ([], (0, 0, 0, 0)),
        # With one combination there is nothing to compare.
        ([_pair("eng0", "eng0", 15)], (0, 0, 0, 0)),
        # Nothing to compare with.
        ([_pair("eng0", "eng1", 15), _pair("eng1", "eng1", 14)], (0, 0, 0, 0)),
        ([_pair("eng0", "eng0", 15), _pair("eng0", "eng1", 16)], (1, 0, 0, 1)),
        ([_pair("eng0", "eng0", 15), _pair("eng0", "eng1", 14.5)], (1, 1, 0, 1)),
        ([_pair("eng0", "eng0", 25), _pair("eng0", "eng1", 20.2)], (1, 1, 1, 0)),
        # On SMs of their own, or one before the other, it is another question.
        *(
            ([_pair("eng0", "eng0", 15), _pair("eng0", "eng1", 10, **options)], (0, 0, 0, 0))
            for options in ({"sm_counts": (64, 68)}, {"priorities": (-1, 0)}, {"lanes": (0, 0)})
        ),
    ],
)
def test_counts_pairs(stages: list[StageMeasurement], counts: tuple[int, ...]) -> None:
    said = describe_pairs(make_profile(*ALONE, *stages))
    assert tuple(map(int, re.findall(r"\d+", said))) == (counts if counts[0] else ())
