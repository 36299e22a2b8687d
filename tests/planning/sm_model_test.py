"""The model of SMs: alone as measured, together as resources and units allow."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_values import KERNELS
from profile_values import KERNEL

from tf_interop.planning.sm_model import Device, ModelKernel, model_lanes_us
from tf_interop.profile.entries import KernelMeasurement
from tf_interop.profile.types import SmLimits

SMS = 132
DEVICE = Device(SmLimits(65536, 233472, 2048, 32), SMS)
Timed = tuple[KernelMeasurement, float]


def kernel(latency_us: float = 100, blocks: int = 4 * SMS, **changes: float | None) -> Timed:
    """A kernel with four blocks to an SM, which fill all of them once."""
    usual = dataclasses.replace(
        KERNEL,
        grid=(blocks, 1, 1),
        block=(128, 1, 1),
        registers_per_thread=128,
        shared_memory_bytes=0,
        alu_utilization=0.4,
        dram_utilization=0.1,
    )
    return dataclasses.replace(usual, **changes), latency_us


def modelled(timed: Timed) -> ModelKernel | None:
    return ModelKernel.of(*timed, DEVICE)


def model_us(lanes: Sequence[Sequence[Timed]], priorities: Sequence[int] = (0,) * 4) -> float:
    return model_lanes_us([list(map(modelled, lane)) for lane in lanes], priorities, DEVICE)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(KERNELS, st.floats(1, 1000)), min_size=1, max_size=2),
        min_size=1,
        max_size=3,
    )
)
def test_is_never_faster_than_a_lane_alone_or_what_the_kernels_take_of_the_device(
    lanes: list[list[Timed]],
) -> None:
    together = model_us(lanes)
    assert together >= max(sum(us for _, us in lane) for lane in lanes) * (1 - 1e-9)
    demands = [modelled(each).demands(DEVICE) for lane in lanes for each in lane]
    for of_one_kind in zip(*demands, strict=True):
        assert together >= sum(of_one_kind) * (1 - 1e-6)
    for each in lanes[0]:
        assert model_us([[each]]) == pytest.approx(each[1])


@pytest.mark.parametrize(
    ("each", "expected"),
    [
        # On different SMs.
        (kernel(blocks=60, alu_utilization=None, dram_utilization=None), 100),
        # They fill the registers.
        (kernel(), 200),
        # They leave room; then they ask too much of the arithmetic units, and of DRAM.
        (kernel(blocks=2 * SMS, alu_utilization=0.4), 100),
        (kernel(blocks=2 * SMS, alu_utilization=0.75), 150),
        (kernel(blocks=60, alu_utilization=0.1, dram_utilization=0.8), 160),
        # What was not measured is taken to be busy.
        (kernel(blocks=2 * SMS, alu_utilization=None, dram_utilization=None), 200),
    ],
)
def test_two_alike_together(each: Timed, expected: float) -> None:
    assert model_us([[each], [each]]) == pytest.approx(expected)


def test_a_later_kernel_fills_what_the_last_wave_leaves() -> None:
    # Five blocks to an SM are one wave of four and one of one.
    waves = kernel(200, blocks=5 * SMS, alu_utilization=0.3)
    filler = kernel(blocks=3 * SMS, alu_utilization=0.3)
    assert model_us([[waves], [filler]]) == pytest.approx(200)
    assert model_us([[filler], [waves]]) == pytest.approx(300, rel=0.35)


def test_priority_goes_before_launch_order() -> None:
    many_waves = kernel(blocks=40 * SMS)
    half = kernel(50, blocks=2 * SMS, alu_utilization=0.1)
    lanes = [[many_waves], [half, half]]
    # The chain gets no SM until the last wave of the first lane has ended, or half of each at once.
    assert model_us(lanes) == pytest.approx(200)
    assert model_us(lanes, priorities=[0, -1]) == pytest.approx(150)


def test_blocks_are_as_the_occupancy_calculator_has_them() -> None:
    each = modelled(kernel(block=(33, 1, 1), registers_per_thread=37, shared_memory_bytes=1))
    block = each.resources
    assert (block.registers, block.shared_memory_bytes, block.threads) == (2560, 256, 64)
    assert modelled(kernel(shared_memory_bytes=240_000)) is None
