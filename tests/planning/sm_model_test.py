"""The model of SMs: occupancy as published, alone as measured, together as resources allow."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_values import KERNELS
from profile_values import HOPPER_SM, KERNEL

from tf_interop.planning.sm_model import Device, ModelKernel, compute_sm_use, model_lanes_us
from tf_interop.profile.entries import KernelMeasurement
from tf_interop.profile.types import SmLimits

# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
VOLTA_SM = SmLimits(registers=65536, shared_memory_bytes=98304, threads=2048, blocks=32)
MANY = (100_000, 1, 1)

SMS = 132
DEVICE = Device(SmLimits(65536, 233472, 2048, 32), SMS)
Timed = tuple[KernelMeasurement, float]


def use_of(
    limits: SmLimits,
    threads: int,
    registers: int = 16,
    kilobytes: int = 0,
    grid: tuple[int, int, int] = MANY,
) -> tuple[float, ...]:
    """Blocks on an SM, and its occupied threads, registers and bytes of shared memory."""
    kernel = dataclasses.replace(
        KERNEL,
        grid=grid,
        block=(threads, 1, 1),
        registers_per_thread=registers,
        shared_memory_bytes=kilobytes * 1024,
    )
    use = compute_sm_use(kernel, Device(limits, SMS))
    return (
        use.blocks * limits.blocks,
        use.threads * limits.threads,
        use.registers * limits.registers,
        use.shared_memory * limits.shared_memory_bytes,
    )


@pytest.mark.parametrize(
    ("limits", "launch", "blocks", "occupied"),
    [
        # CUDA C++ Best Practices Guide, "Calculating Occupancy": 37 registers a thread on compute
        # capability 7.0, in blocks of 128 and of 320 threads; up to 32 registers fill the SM.
        (VOLTA_SM, (128, 37), 12, 0.75 * 2048),
        (VOLTA_SM, (320, 37), 4, 0.625 * 2048),
        (VOLTA_SM, (256, 32), 8, 2048),
        (VOLTA_SM, (256, 33), 6, 0.75 * 2048),
        # All registers have room for 65536 / 3328 = 19 warps, but each of four parts only for 4.
        (HOPPER_SM, (32, 104), 16, 16 * 32),
        # Hopper Tuning Guide, "Unified Shared Memory/L1/Texture Cache": 228 KB for each SM, 227 KB
        # for a block, 1 KB reserved for each block.
        (HOPPER_SM, (32, 16, 227), 1, 32),
        (HOPPER_SM, (32, 16, 113), 2, 64),
        (HOPPER_SM, (32, 16, 114), 1, 32),
        (VOLTA_SM, (32, 16, 96), 1, 32),
        (VOLTA_SM, (32, 16, 48), 2, 64),
        # The limits of blocks and threads.
        (HOPPER_SM, (32,), 32, 32 * 32),
        (HOPPER_SM, (1024,), 2, 2048),
        (HOPPER_SM, (768,), 2, 2 * 768),
        # Whole warps.
        (HOPPER_SM, (33,), 32, 32 * 64),
        # A small grid fills less.
        (HOPPER_SM, (128, 16, 0, (SMS, 1, 1)), 1, 128),
        (HOPPER_SM, (128, 16, 0, (SMS + 1, 1, 1)), 2, 256),
        (HOPPER_SM, (128, 16, 0, (11, 6, 4)), 2, 256),
        # More shared memory than an SM has.
        (HOPPER_SM, (32, 16, 228), 0, 0),
    ],
)
def test_occupancy_is_as_published(
    limits: SmLimits, launch: tuple, blocks: int, occupied: float
) -> None:
    assert use_of(limits, *launch)[:2] == pytest.approx((blocks, occupied))


def test_resources_are_counted_in_allocation_units() -> None:
    # 37 registers for each of 32 threads are 1184, allocated as 1280; 12 blocks of 4 warps.
    assert use_of(VOLTA_SM, 128, 37)[2] == 12 * 4 * 1280
    assert use_of(HOPPER_SM, 32, 16, 113)[3] == 2 * (113 + 1) * 1024
    kernel, us = timed(block=(33, 1, 1), registers_per_thread=37, shared_memory_bytes=1)
    block = ModelKernel.of(kernel, us, DEVICE).resources
    assert (block.registers, block.shared_memory_bytes, block.threads) == (2560, 256, 64)
    assert ModelKernel.of(*timed(shared_memory_bytes=240_000), DEVICE) is None


def timed(latency_us: float = 100, blocks: int = 4 * SMS, **changes: float | None) -> Timed:
    """A kernel with four blocks to an SM, which fill all SMs once."""
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


def model_us(lanes: Sequence[Sequence[Timed]], priorities: Sequence[int] = (0,) * 4) -> float:
    modelled = [[ModelKernel.of(*each, DEVICE) for each in lane] for lane in lanes]
    return model_lanes_us(modelled, priorities, DEVICE)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(KERNELS, st.floats(1, 1000)), min_size=1, max_size=2),
        min_size=1,
        max_size=3,
    )
)
def test_is_never_faster_than_a_lane_alone_or_the_device_allows(lanes: list[list[Timed]]) -> None:
    together = model_us(lanes)
    assert together >= max(sum(us for _, us in lane) for lane in lanes) * (1 - 1e-9)
    demands = [ModelKernel.of(*each, DEVICE).demands(DEVICE) for lane in lanes for each in lane]
    for of_one_kind in zip(*demands, strict=True):
        assert together >= sum(of_one_kind) * (1 - 1e-6)
    for each in lanes[0]:
        assert model_us([[each]]) == pytest.approx(each[1])


@pytest.mark.parametrize(
    ("each", "expected"),
    [
        # They run on different SMs.
        (timed(blocks=60, alu_utilization=None, dram_utilization=None), 100),
        # They fill the registers.
        (timed(), 200),
        # They leave room; then they want too much of the arithmetic units, and of DRAM.
        (timed(blocks=2 * SMS, alu_utilization=0.4), 100),
        (timed(blocks=2 * SMS, alu_utilization=0.75), 150),
        (timed(blocks=60, alu_utilization=0.1, dram_utilization=0.8), 160),
        # Without a measurement they count as busy.
        (timed(blocks=2 * SMS, alu_utilization=None, dram_utilization=None), 200),
    ],
)
def test_two_equal_kernels_together(each: Timed, expected: float) -> None:
    assert model_us([[each], [each]]) == pytest.approx(expected)


def test_a_later_kernel_fills_the_last_wave() -> None:
    # Five blocks to an SM are one wave of four and one of one.
    waves = timed(200, blocks=5 * SMS, alu_utilization=0.3)
    filler = timed(blocks=3 * SMS, alu_utilization=0.3)
    assert model_us([[waves], [filler]]) == pytest.approx(200)
    assert model_us([[filler], [waves]]) == pytest.approx(300, rel=0.35)


def test_priority_comes_before_launch_order() -> None:
    many_waves = timed(blocks=40 * SMS)
    half = timed(50, blocks=2 * SMS, alu_utilization=0.1)
    lanes = [[many_waves], [half, half]]
    # The chain waits for the last wave of the first lane, or gets half of each SM at once.
    assert model_us(lanes) == pytest.approx(200)
    assert model_us(lanes, priorities=[0, -1]) == pytest.approx(150)
