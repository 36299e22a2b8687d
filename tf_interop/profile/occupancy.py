"""How much of one streaming multiprocessor (SM) a kernel fills: the values of the paper's Table 1.

The calculation is that of NVIDIA's occupancy calculator, for compute capability 5.0 and above
(`cuda_occupancy.h` of the CUDA toolkit; CUDA C++ Best Practices Guide, "Calculating Occupancy").
"""

from __future__ import annotations

import dataclasses
import math

from tf_interop.profile.entries import KernelMeasurement
from tf_interop.profile.types import SmLimits

WARP_SIZE = 32

# Registers are handed to whole warps, 256 at a time, out of the share of one of the SM's four
# parts, each of which schedules every fourth warp.
_REGISTER_UNIT = 256
_SM_PARTS = 4

_UNLIMITED = 1 << 30


@dataclasses.dataclass(frozen=True, slots=True)
class Occupancy:
    """What a kernel that runs alone takes of the SM with most of its blocks.

    Attributes:
        resident_blocks: blocks on it at a time; 0 for a kernel that cannot be launched.
        registers: share of its registers, in the units that they are handed out in.
        shared_memory: share of its shared memory, reserved bytes included.
        threads: share of its thread slots, whole warps.
        blocks: share of its block slots.
    """

    resident_blocks: int
    registers: float
    shared_memory: float
    threads: float
    blocks: float


@dataclasses.dataclass(frozen=True, slots=True)
class BlockResources:
    """What a resident block holds of an SM, in the units that it is handed out in.

    Attributes:
        registers: 32-bit registers.
        shared_memory_bytes: reserved bytes included.
        threads: whole warps.
    """

    registers: int
    shared_memory_bytes: int
    threads: int


def block_resources(kernel: KernelMeasurement, limits: SmLimits) -> BlockResources:
    """What one block of a kernel holds of an SM while it resides there."""
    warps = -(-math.prod(kernel.block) // WARP_SIZE)
    return BlockResources(
        registers=warps * _round_up(kernel.registers_per_thread * WARP_SIZE, _REGISTER_UNIT),
        shared_memory_bytes=_shared_memory_of_block(kernel, limits),
        threads=warps * WARP_SIZE,
    )


def compute_occupancy(kernel: KernelMeasurement, limits: SmLimits, sm_count: int) -> Occupancy:
    """Computes what the blocks of a kernel take of an SM.

    Args:
        kernel: the launch.
        limits: what the SM has.
        sm_count: SMs that the grid's blocks are spread over.
    """
    block = block_resources(kernel, limits)
    blocks = min(
        _blocks_by_registers(block, limits),
        _divide(limits.shared_memory_bytes, block.shared_memory_bytes),
        limits.threads // block.threads,
        limits.blocks,
        -(-math.prod(kernel.grid) // sm_count),
    )
    return Occupancy(
        resident_blocks=blocks,
        registers=blocks * block.registers / limits.registers,
        shared_memory=blocks * block.shared_memory_bytes / limits.shared_memory_bytes,
        threads=blocks * block.threads / limits.threads,
        blocks=blocks / limits.blocks,
    )


def _blocks_by_registers(block: BlockResources, limits: SmLimits) -> int:
    warps = block.threads // WARP_SIZE
    warps_per_part = _divide(limits.registers // _SM_PARTS, block.registers // warps)
    return warps_per_part * _SM_PARTS // warps


def _shared_memory_of_block(kernel: KernelMeasurement, limits: SmLimits) -> int:
    # Compute capability 8.0 brought both the reserved bytes and the smaller unit.
    unit = 128 if limits.reserved_shared_memory_bytes else 256
    return _round_up(kernel.shared_memory_bytes + limits.reserved_shared_memory_bytes, unit)


def _divide(available: int, needed: int) -> int:
    return available // needed if needed else _UNLIMITED


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
