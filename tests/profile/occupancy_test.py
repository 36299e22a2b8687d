"""What a kernel takes of a streaming multiprocessor, against published values and by invariants."""

from __future__ import annotations

import dataclasses

import pytest
from profile_values import HOPPER_SM, KERNEL

from tf_interop.planning.sm_model import compute_sm_use
from tf_interop.profile.types import SmLimits

# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
VOLTA_SM = SmLimits(registers=65536, shared_memory_bytes=98304, threads=2048, blocks=32)
AMPERE_SM = dataclasses.replace(HOPPER_SM, shared_memory_bytes=167936)
KB = 1024


def use_of(
    limits: SmLimits,
    threads: int,
    registers: int = 0,
    shared_memory_bytes: int = 0,
    grid: tuple[int, int, int] = (100_000, 1, 1),
) -> tuple[float, ...]:
    """Blocks on an SM, and shares of its registers, shared memory and threads."""
    kernel = dataclasses.replace(
        KERNEL,
        grid=grid,
        block=(threads, 1, 1),
        registers_per_thread=registers,
        shared_memory_bytes=shared_memory_bytes,
    )
    use = compute_sm_use(kernel, limits, 132)
    return use.blocks * limits.blocks, use.registers, use.shared_memory, use.threads


# CUDA C++ Best Practices Guide, "Calculating Occupancy": 37 registers a thread on compute
# capability 7.0, in blocks of 128 and of 320 threads; at most 32 registers fill the SM.
@pytest.mark.parametrize(
    ("threads", "registers", "blocks", "occupancy"),
    [(128, 37, 12, 0.75), (320, 37, 4, 0.625), (256, 32, 8, 1.0), (256, 33, 6, 0.75)],
)
def test_registers_are_those_of_the_best_practices_guide(
    threads: int, registers: int, blocks: int, occupancy: float
) -> None:
    found = use_of(VOLTA_SM, threads, registers)
    assert (found[0], found[3]) == (blocks, occupancy)


def test_registers_are_counted_as_handed_out() -> None:
    # 37 registers for 32 threads are 1184, handed out as 1280; 12 blocks of 4 warps.
    assert use_of(VOLTA_SM, 128, 37)[1] == 12 * 4 * 1280 / 65536
    # 65536 / 3328 = 19 warps by the sum, but 16384 / 3328 = 4 on each of four parts.
    assert use_of(HOPPER_SM, 32, 104)[0] == 16


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
    assert use_of(limits, 32, 16, kilobytes * KB)[0] == blocks


@pytest.mark.parametrize(
    ("threads", "grid", "blocks", "occupied"),
    [
        (32, (100_000, 1, 1), 32, 32 * 32),
        (1024, (100_000, 1, 1), 2, 2048),
        (768, (100_000, 1, 1), 2, 2 * 768),
        # Whole warps.
        (33, (100_000, 1, 1), 32, 32 * 64),
        # A small grid fills less.
        (128, (132, 1, 1), 1, 128),
        (128, (133, 1, 1), 2, 256),
        (128, (11, 6, 4), 2, 256),
    ],
)
def test_threads_blocks_and_the_grid_limit_kernels(
    threads: int, grid: tuple[int, int, int], blocks: int, occupied: int
) -> None:
    found = use_of(HOPPER_SM, threads, 16, grid=grid)
    assert (found[0], found[3]) == (blocks, occupied / 2048)


def test_what_cannot_be_launched_takes_nothing() -> None:
    assert use_of(HOPPER_SM, 32, 16, 228 * KB) == (0, 0, 0, 0)
