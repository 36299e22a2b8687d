"""A GPU kernel as the model of SMs (`sm_model`) sees it, and what it takes of the device."""

from __future__ import annotations

import dataclasses
import math

from tf_interop.profile.types import SmLimits


@dataclasses.dataclass(frozen=True, slots=True)
class ModelKernel:
    """A GPU kernel as the model sees it.

    Attributes:
        blocks: of its grid.
        registers: of one block, as allocated.
        shared_memory_bytes: of one block, as allocated.
        threads: of one block.
        latency_us: alone on the whole device.
        alu_utilization: share of the arithmetic units' time, alone; None where not measured.
        dram_utilization: share of DRAM's throughput, alone; None where not measured.
    """

    blocks: int
    registers: int
    shared_memory_bytes: int
    threads: int
    latency_us: float
    alu_utilization: float | None = None
    dram_utilization: float | None = None

    def resident_blocks(self, limits: SmLimits) -> int:
        """How many blocks fit on one SM; 0 where not even one does."""
        return min(
            limits.blocks,
            limits.threads // self.threads,
            limits.registers // max(self.registers, 1),
            limits.shared_memory_bytes // max(self.shared_memory_bytes, 1),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Demands:
    """What a kernel takes of the device, each in the time that all of the device would take for it.

    Kernels that run together take at least as long as the sum of any one of these.

    Attributes:
        registers_us: of the registers of all SMs.
        shared_memory_us: of their shared memory.
        threads_us: of their thread slots.
        alu_us: of their arithmetic units.
        dram_us: of DRAM's throughput.
    """

    registers_us: float
    shared_memory_us: float
    threads_us: float
    alu_us: float
    dram_us: float


def demands_of(kernel: ModelKernel, limits: SmLimits, sm_count: int) -> Demands:
    """What a kernel takes, in the sense of this model.

    Raises:
        ValueError: no block of it fits on an SM.
    """
    share = BlockShare.of(kernel, limits, sm_count)
    block_us = kernel.blocks * share.wave_us
    return Demands(
        registers_us=block_us * kernel.registers / (limits.registers * sm_count),
        shared_memory_us=block_us
        * kernel.shared_memory_bytes
        / (limits.shared_memory_bytes * sm_count),
        threads_us=block_us * kernel.threads / (limits.threads * sm_count),
        alu_us=block_us * share.alu / sm_count,
        dram_us=block_us * share.dram,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class BlockShare:
    """What one block of a kernel would use, undisturbed.

    Attributes:
        wave_us: the time it takes.
        alu: the share of its SM's arithmetic units.
        dram: the share of DRAM.
    """

    wave_us: float
    alu: float
    dram: float

    @classmethod
    def of(cls, kernel: ModelKernel, limits: SmLimits, sm_count: int) -> BlockShare:
        """That of a kernel, whose figures were measured alone on the whole device.

        Raises:
            ValueError: no block of it fits on an SM.
        """
        resident = kernel.resident_blocks(limits)
        if resident == 0:
            raise ValueError(f"Expected a kernel of which a block fits on an SM, got {kernel}.")
        at_once = min(kernel.blocks, resident * sm_count)
        waves = math.ceil(kernel.blocks / at_once)
        # In all its blocks the kernel does the work that was measured; a wave alone slows nothing.
        busiest = 1 / math.ceil(at_once / sm_count)
        alu, dram = busiest, min(at_once, sm_count) / sm_count / at_once
        if kernel.alu_utilization is not None:
            alu = min(busiest, kernel.alu_utilization * sm_count * waves / kernel.blocks)
        if kernel.dram_utilization is not None:
            dram = min(1 / at_once, kernel.dram_utilization * waves / kernel.blocks)
        return cls(kernel.latency_us / waves, alu, dram)
