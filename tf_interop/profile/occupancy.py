"""How much of one streaming multiprocessor (SM) a kernel fills: the values of the paper's Table 1.

The calculation is that of NVIDIA's occupancy calculator, for compute capability 5.0 and above
(`cuda_occupancy.h` of the CUDA toolkit; CUDA C++ Best Practices Guide, "Calculating Occupancy").
"""

from __future__ import annotations

import dataclasses
import math

from tf_interop.profile.entries import KernelMeasurement, Share
from tf_interop.profile.types import SmLimits

WARP_SIZE = 32

# Registers are handed to whole warps, 256 at a time, out of the share of one of the SM's four
# parts, each of which schedules every fourth warp.
_REGISTER_UNIT = 256
_SM_PARTS = 4


@dataclasses.dataclass(frozen=True, slots=True)
class SmUse:
    """What a kernel that runs alone takes of the SM with most of its blocks.

    Attributes:
        registers: share of an SM's registers that its resident blocks hold, in the units that they
            are handed out in.
        shared_memory: of its shared memory, reserved bytes included.
        threads: of its thread slots, whole warps.
        blocks: of its block slots; 0 for a kernel that cannot be launched.
        alu_utilization: share of the time in which the busiest arithmetic pipe works; None if it
            was not measured.
        dram_utilization: of DRAM's throughput; likewise.
        memory_stall: share of the warps' stalls that wait for memory; likewise.
    """

    registers: Share
    shared_memory: Share
    threads: Share
    blocks: Share
    alu_utilization: Share | None = None
    dram_utilization: Share | None = None
    memory_stall: Share | None = None


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
    # Compute capability 8.0 brought both the reserved bytes and the smaller unit.
    unit = 128 if limits.reserved_shared_memory_bytes else 256
    return BlockResources(
        registers=warps * _round_up(kernel.registers_per_thread * WARP_SIZE, _REGISTER_UNIT),
        shared_memory_bytes=_round_up(
            kernel.shared_memory_bytes + limits.reserved_shared_memory_bytes, unit
        ),
        threads=warps * WARP_SIZE,
    )


def compute_sm_use(kernel: KernelMeasurement, limits: SmLimits, sm_count: int) -> SmUse:
    """Computes what the blocks of a kernel take of an SM.

    Args:
        kernel: the launch, and what was measured of it.
        limits: what the SM has.
        sm_count: SMs that the grid's blocks are spread over.
    """
    block = block_resources(kernel, limits)
    warps = block.threads // WARP_SIZE
    warps_per_part = limits.registers // _SM_PARTS // max(block.registers // warps, 1)
    blocks = min(
        warps_per_part * _SM_PARTS // warps,
        limits.shared_memory_bytes // max(block.shared_memory_bytes, 1),
        limits.threads // block.threads,
        limits.blocks,
        -(-math.prod(kernel.grid) // sm_count),
    )
    return SmUse(
        registers=blocks * block.registers / limits.registers,
        shared_memory=blocks * block.shared_memory_bytes / limits.shared_memory_bytes,
        threads=blocks * block.threads / limits.threads,
        blocks=blocks / limits.blocks,
        alu_utilization=kernel.alu_utilization,
        dram_utilization=kernel.dram_utilization,
        memory_stall=kernel.memory_stall,
    )


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
