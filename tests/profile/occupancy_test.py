"""What a kernel takes of a streaming multiprocessor, against published values and by invariants."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profile_values import HOPPER_SM, KERNEL

from tf_interop.profile.entries import KernelMeasurement
from tf_interop.profile.occupancy import compute_occupancy
from tf_interop.profile.types import SmLimits

# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
VOLTA_SM = SmLimits(registers=65536, shared_memory_bytes=98304, threads=2048, blocks=32)
AMPERE_SM = SmLimits(
    registers=65536,
    shared_memory_bytes=167936,
    threads=2048,
    blocks=32,
    reserved_shared_memory_bytes=1024,
)
MANY_BLOCKS = (100_000, 1, 1)


def _kernel(threads: int, registers: int = 0, shared_memory_bytes: int = 0) -> KernelMeasurement:
    return dataclasses.replace(
        KERNEL,
        grid=MANY_BLOCKS,
        block=(threads, 1, 1),
        registers_per_thread=registers,
        shared_memory_bytes=shared_memory_bytes,
    )


# CUDA C++ Best Practices Guide, "Calculating Occupancy": 37 registers a thread on compute
# capability 7.0, in blocks of 128 and of 320 threads; at most 32 registers fill the SM.
@pytest.mark.parametrize(
    ("threads", "registers", "blocks", "occupancy"),
    [(128, 37, 12, 0.75), (320, 37, 4, 0.625), (256, 32, 8, 1.0), (256, 33, 6, 0.75)],
)
def test_registers_are_those_of_the_best_practices_guide(
    threads: int, registers: int, blocks: int, occupancy: float
) -> None:
    computed = compute_occupancy(_kernel(threads, registers), VOLTA_SM, 80)
    assert (computed.resident_blocks, computed.threads) == (blocks, occupancy)


def test_registers_are_counted_as_handed_out() -> None:
    # 37 registers for 32 threads are 1184, handed out as 1280; 12 blocks of 4 warps.
    computed = compute_occupancy(_kernel(128, 37), VOLTA_SM, 80)
    assert computed.registers == 12 * 4 * 1280 / 65536


def test_registers_are_of_one_part_of_the_sm() -> None:
    # 65536 / 3328 = 19 warps by the sum, but 16384 / 3328 = 4 on each of four parts.
    computed = compute_occupancy(_kernel(32, 104), HOPPER_SM, 132)
    assert computed.resident_blocks == 16


# Hopper Tuning Guide, "Unified Shared Memory/L1/Texture Cache": 228 KB for each SM, 227 KB for a
# block, 1 KB reserved for each block. Ampere Tuning Guide likewise: 164, 163 and 1 KB.
@pytest.mark.parametrize(
    ("limits", "kilobytes", "blocks"),
    [
        (HOPPER_SM, 227, 1),
        (HOPPER_SM, 113, 2),
        (HOPPER_SM, 114, 1),
        (AMPERE_SM, 163, 1),
        (AMPERE_SM, 81, 2),
        (AMPERE_SM, 82, 1),
        (VOLTA_SM, 96, 1),
        (VOLTA_SM, 48, 2),
    ],
)
def test_shared_memory_is_that_of_the_tuning_guides(
    limits: SmLimits, kilobytes: int, blocks: int
) -> None:
    computed = compute_occupancy(_kernel(32, 16, kilobytes << 10), limits, 132)
    assert computed.resident_blocks == blocks


# cudaOccSMemAllocationGranularity in cuda_occupancy.h: 256 bytes up to compute capability 7.
@pytest.mark.parametrize(("limits", "unit"), [(VOLTA_SM, 256), (HOPPER_SM, 128)])
def test_shared_memory_is_counted_as_handed_out(limits: SmLimits, unit: int) -> None:
    computed = compute_occupancy(_kernel(1024, 16, 1), limits, 132)
    assert computed.resident_blocks == 2
    handed_out = limits.reserved_shared_memory_bytes + unit
    assert computed.shared_memory == 2 * handed_out / limits.shared_memory_bytes


@pytest.mark.parametrize(("threads", "blocks"), [(32, 32), (1024, 2), (768, 2)])
def test_threads_and_blocks_limit_small_kernels(threads: int, blocks: int) -> None:
    computed = compute_occupancy(_kernel(threads, 16), HOPPER_SM, 132)
    assert computed.resident_blocks == blocks
    assert computed.blocks == blocks / 32


def test_threads_are_whole_warps() -> None:
    computed = compute_occupancy(_kernel(33, 16), HOPPER_SM, 132)
    assert computed.threads == 32 * 64 / 2048


@pytest.mark.parametrize(
    ("grid", "blocks"), [((132, 1, 1), 1), ((133, 1, 1), 2), ((11, 6, 4), 2), ((1, 1, 1), 1)]
)
def test_a_small_grid_fills_less(grid: tuple[int, int, int], blocks: int) -> None:
    kernel = dataclasses.replace(_kernel(128, 16), grid=grid)
    computed = compute_occupancy(kernel, HOPPER_SM, 132)
    assert computed.resident_blocks == blocks
    assert computed.threads == blocks * 128 / 2048


def test_what_cannot_be_launched_takes_nothing() -> None:
    computed = compute_occupancy(_kernel(32, 16, 228 << 10), HOPPER_SM, 132)
    assert computed.resident_blocks == 0
    assert (computed.shared_memory, computed.threads) == (0, 0)


kernels = st.builds(
    KernelMeasurement,
    name=st.just("kernel"),
    grid=st.tuples(st.integers(1, 5000), st.integers(1, 8), st.just(1)),
    block=st.tuples(st.integers(1, 256), st.integers(1, 4), st.just(1)),
    registers_per_thread=st.integers(0, 255),
    shared_memory_bytes=st.integers(0, 240_000),
    time_share=st.just(1.0),
)


@settings(deadline=None)
@given(kernel=kernels, limits=st.sampled_from([VOLTA_SM, AMPERE_SM, HOPPER_SM]))
def test_no_kernel_takes_more_than_there_is_and_one_more_block_would(
    kernel: KernelMeasurement, limits: SmLimits
) -> None:
    computed = compute_occupancy(kernel, limits, 132)
    shares = (computed.registers, computed.shared_memory, computed.threads, computed.blocks)
    assert all(0 <= share <= 1 for share in shares)
    # Registers are of one part of the SM: their sum may leave room that no warp finds.
    kernel = dataclasses.replace(kernel, registers_per_thread=0)
    computed = compute_occupancy(kernel, limits, 132)
    blocks = computed.resident_blocks
    has_all = blocks == -(-kernel.grid[0] * kernel.grid[1] // 132)
    fullest = max(computed.shared_memory, computed.threads, computed.blocks)
    assert has_all or blocks == 0 or fullest / blocks * (blocks + 1) > 1


@settings(deadline=None)
@given(kernel=kernels, more=st.integers(1, 100))
def test_a_kernel_that_needs_more_resides_with_fewer_blocks(
    kernel: KernelMeasurement, more: int
) -> None:
    blocks = compute_occupancy(kernel, HOPPER_SM, 132).resident_blocks
    for field in ("registers_per_thread", "shared_memory_bytes"):
        larger = dataclasses.replace(kernel, **{field: getattr(kernel, field) + more})
        assert compute_occupancy(larger, HOPPER_SM, 132).resident_blocks <= blocks
