"""Models a stage's time: thread blocks that share streaming multiprocessors (SMs).

`compute_sm_use` returns the share of an SM that one kernel fills, as in Table 1 of Pourghassemi et
al. (SPAA 2020). `model_lanes_us` simulates the device's block scheduler for lanes of kernels, from
their measurements. `StageModel` calibrates it.

The simulation's assumptions, and their sources:

- Blocks of a kernel are alike. Alone, a kernel runs in waves of as many blocks as fit on all SMs,
  and every wave takes the same time. So a kernel alone takes its measured time.
- A block goes to the SM with the fewest blocks on which its registers, shared memory, threads and
  the block itself fit (CUDA C++ Programming Guide, "Multiprocessor Level").
- The scheduler serves kernels by the priority of their streams, then in launch order. It turns to
  the next kernel after it has placed the last block of the one before (the leftover policy: Olmedo
  et al., "Dissecting the CUDA scheduling hierarchy", RTAS 2020). It never removes a block from an
  SM.
- Blocks on one SM share its arithmetic units, and all blocks of the device share DRAM. If the
  blocks together need more than there is, all of them slow down alike. A block needs its share of
  the kernel's utilization, measured alone. Where that was not measured, the blocks of one kernel
  are assumed to keep their SMs busy, and DRAM in proportion to the SMs they are on: two such
  kernels gain nothing on one SM.
- Launching takes no time. The first kernels of all lanes are ready at once, and any other kernel
  when the one before it in its lane has ended.

The model knows nothing of caches, throttled clocks and tensor cores, kernels that are written to
stay on their SMs, merged convolutions (their kernels are unknown), or lanes with SMs of their own.
A measured stage is therefore preferred to a modelled one.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Sequence

from tf_interop.profile.entries import KernelMeasurement, Share
from tf_interop.profile.types import SmLimits

_WARP_SIZE = 32
# Registers are allocated to whole warps, 256 at a time. Each of an SM's four parts owns a quarter
# of them and schedules every fourth warp.
_REGISTER_UNIT = 256
_SM_PARTS = 4

# A smaller remaining share of a block's work is a rounding error.
_DONE = 1e-9


@dataclasses.dataclass(frozen=True, slots=True)
class Device:
    """The SMs that kernels run on; `limits` applies to each of them."""

    limits: SmLimits
    sm_count: int


@dataclasses.dataclass(frozen=True, slots=True)
class SmUse:
    """The use of the fullest SM by a kernel that runs alone.

    Attributes:
        registers: share of the SM's registers, in allocation units.
        shared_memory: share of its shared memory, including reserved bytes.
        threads: share of its thread slots, in whole warps.
        blocks: share of its block slots; 0 for a kernel that cannot be launched.
        alu_utilization: as measured (see KernelMeasurement), like `dram_utilization`.
    """

    registers: Share
    shared_memory: Share
    threads: Share
    blocks: Share
    alu_utilization: Share | None = None
    dram_utilization: Share | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class _BlockResources:
    """The part of an SM that one block occupies, in allocation units."""

    registers: int
    shared_memory_bytes: int
    threads: int

    @classmethod
    def of(cls, kernel: KernelMeasurement, limits: SmLimits) -> _BlockResources:
        """Follows NVIDIA's occupancy calculator, for compute capability 5.0 and above.

        See `cuda_occupancy.h` of the CUDA toolkit, and the CUDA C++ Best Practices Guide,
        "Calculating Occupancy".
        """
        warps = -(-math.prod(kernel.block) // _WARP_SIZE)
        # Compute capability 8.0 introduced both the reserved bytes and the smaller unit.
        unit = 128 if limits.reserved_shared_memory_bytes else 256
        return cls(
            registers=warps * _round_up(kernel.registers_per_thread * _WARP_SIZE, _REGISTER_UNIT),
            shared_memory_bytes=_round_up(
                kernel.shared_memory_bytes + limits.reserved_shared_memory_bytes, unit
            ),
            threads=warps * _WARP_SIZE,
        )


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def compute_sm_use(kernel: KernelMeasurement, device: Device) -> SmUse:
    """Computes the share of an SM that a kernel takes if its grid is spread over all SMs."""
    limits = device.limits
    block = _BlockResources.of(kernel, limits)
    warps = block.threads // _WARP_SIZE
    warps_per_part = limits.registers // _SM_PARTS // max(block.registers // warps, 1)
    blocks = min(
        warps_per_part * _SM_PARTS // warps,
        _room(limits, block),
        -(-math.prod(kernel.grid) // device.sm_count),
    )
    return SmUse(
        registers=blocks * block.registers / limits.registers,
        shared_memory=blocks * block.shared_memory_bytes / limits.shared_memory_bytes,
        threads=blocks * block.threads / limits.threads,
        blocks=blocks / limits.blocks,
        alu_utilization=kernel.alu_utilization,
        dram_utilization=kernel.dram_utilization,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class ModelKernel:
    """A GPU kernel as the model sees it.

    Attributes:
        blocks: of its grid.
        resources: of one block.
        wave_us: time of a block that nothing slows down.
        alu: share of its SM's arithmetic units that such a block uses.
        dram: share of DRAM's throughput that such a block uses.
    """

    blocks: int
    resources: _BlockResources
    wave_us: float
    alu: float
    dram: float

    @classmethod
    def of(cls, kernel: KernelMeasurement, latency_us: float, device: Device) -> ModelKernel | None:
        """Models a kernel from its measurement alone on the whole device.

        Returns:
            None if not even one block fits on an SM.
        """
        sm_count = device.sm_count
        resources = _BlockResources.of(kernel, device.limits)
        resident = _room(device.limits, resources)
        if not resident:
            return None
        blocks = math.prod(kernel.grid)
        at_once = min(blocks, resident * sm_count)
        waves = math.ceil(blocks / at_once)
        # All blocks together do the measured work; a wave alone slows nothing down.
        busiest = 1 / math.ceil(at_once / sm_count)
        alu, dram = busiest, min(at_once, sm_count) / sm_count / at_once
        if kernel.alu_utilization is not None:
            alu = min(busiest, kernel.alu_utilization * sm_count * waves / blocks)
        if kernel.dram_utilization is not None:
            dram = min(1 / at_once, kernel.dram_utilization * waves / blocks)
        return cls(blocks, resources, latency_us / waves, alu, dram)

    def demands(self, device: Device) -> tuple[float, ...]:
        """The times in which the whole device could supply each of the kernel's needs.

        Returns:
            For registers, shared memory, thread slots, arithmetic units and DRAM, in microseconds.
            Kernels that run together take at least the sum of their times for any one of these.
        """
        block_us = self.blocks * self.wave_us
        on_all_sms = (
            self.resources.registers / device.limits.registers,
            self.resources.shared_memory_bytes / device.limits.shared_memory_bytes,
            self.resources.threads / device.limits.threads,
            self.alu,
        )
        return (*(block_us * each / device.sm_count for each in on_all_sms), block_us * self.dram)


def model_lanes_us(
    lanes: Sequence[Sequence[ModelKernel]], priorities: Sequence[int], device: Device
) -> float:
    """Simulates lanes until the last one has ended; returns the time in microseconds.

    Lanes are launched in this order. Lower priorities go first.
    """
    # The sort is stable: equal priorities keep the launch order.
    order = sorted(range(len(lanes)), key=lambda lane: priorities[lane])
    return _Simulation([lanes[lane] for lane in order], device).run()


@dataclasses.dataclass(slots=True, eq=False)
class _RunningKernel:
    kernel: ModelKernel
    unplaced: int  # Blocks that wait for an SM.
    unfinished: int


@dataclasses.dataclass(slots=True)
class _Batch:
    """Blocks of one kernel that were placed on one SM at the same time."""

    running: _RunningKernel
    blocks: int  # On each SM of the group.
    left: float  # Remaining share of their work.


@dataclasses.dataclass(slots=True)
class _SmGroup:
    """SMs with the same blocks, and the free resources of each one."""

    count: int
    batches: list[_Batch]
    registers: int
    shared_memory_bytes: int
    threads: int
    blocks: int
    speed: float = 1.0  # Speed of their blocks relative to a block alone.

    def split(self, count: int) -> _SmGroup:
        """Keeps `count` SMs in this group and returns the others."""
        rest = dataclasses.replace(
            self,
            count=self.count - count,
            batches=[dataclasses.replace(batch) for batch in self.batches],
        )
        self.count = count
        return rest

    def take(self, block: _BlockResources, blocks: int) -> None:
        """Takes the resources of some blocks; a negative number frees them."""
        self.registers -= block.registers * blocks
        self.shared_memory_bytes -= block.shared_memory_bytes * blocks
        self.threads -= block.threads * blocks
        self.blocks -= blocks

    def add_block(self, running: _RunningKernel) -> None:
        self.take(running.kernel.resources, 1)
        for batch in self.batches:
            if batch.running is running and batch.left == 1.0:
                batch.blocks += 1
                return
        self.batches.append(_Batch(running, 1, 1.0))

    def run_for(self, step_us: float) -> None:
        left = []
        for batch in self.batches:
            batch.left -= step_us * self.speed / batch.running.kernel.wave_us
            if batch.left > _DONE:
                left.append(batch)
            else:
                batch.running.unfinished -= batch.blocks * self.count
                self.take(batch.running.kernel.resources, -batch.blocks)
        self.batches = left

    def content(self) -> tuple[object, ...]:
        """A key that is equal for SMs with the same blocks."""
        return tuple((id(batch.running), batch.blocks, batch.left) for batch in self.batches)


def _room(left: SmLimits | _SmGroup, block: _BlockResources) -> int:
    """The number of blocks that fit into an SM's free resources."""
    return min(
        left.blocks,
        left.threads // block.threads,
        left.registers // max(block.registers, 1),
        left.shared_memory_bytes // max(block.shared_memory_bytes, 1),
    )


class _Simulation:
    def __init__(self, lanes: Sequence[Sequence[ModelKernel]], device: Device) -> None:
        limits = device.limits
        self._lanes = [iter(lane) for lane in lanes]
        # The kernel of each lane that runs.
        self._running: list[_RunningKernel | None] = [None] * len(lanes)
        left = (limits.registers, limits.shared_memory_bytes, limits.threads, limits.blocks)
        self._groups = [_SmGroup(device.sm_count, [], *left)]

    def run(self) -> float:
        now = 0.0
        while True:
            for place, running in enumerate(self._running):
                if running is None or not running.unfinished:
                    kernel = next(self._lanes[place], None)
                    self._running[place] = (
                        None
                        if kernel is None
                        else _RunningKernel(kernel, kernel.blocks, kernel.blocks)
                    )
            self._place()
            groups = [group for group in self._groups if group.batches]
            if not groups:
                return now
            self._set_speeds(groups)
            step = min(
                batch.left * batch.running.kernel.wave_us / group.speed
                for group in groups
                for batch in group.batches
            )
            now += step * self._whole_waves(groups)
            for group in groups:
                group.run_for(step)
            if len(self._groups) > 2:
                self._join_equal_groups()

    def _place(self) -> None:
        """Places blocks, kernel by kernel, up to the first kernel with blocks left over."""
        for running in self._running:
            if running is None:
                continue
            # The SMs with the fewest blocks, that is with the most free slots, come first. The
            # number breaks ties.
            fitting = [
                (-group.blocks, number, room, group)
                for number, group in enumerate(self._groups)
                if (room := _room(group, running.kernel.resources)) > 0
            ]
            heapq.heapify(fitting)
            while running.unplaced and fitting:
                minus_left, number, room, group = heapq.heappop(fitting)
                if group.count > running.unplaced:
                    self._groups.append(group.split(running.unplaced))
                group.add_block(running)
                running.unplaced -= group.count
                if room > 1:
                    heapq.heappush(fitting, (minus_left + 1, number, room - 1, group))
            if running.unplaced:
                return

    def _join_equal_groups(self) -> None:
        joined: dict[tuple[object, ...], _SmGroup] = {}
        for group in self._groups:
            same = joined.setdefault(group.content(), group)
            if same is not group:
                same.count += group.count
        self._groups = list(joined.values())

    def _whole_waves(self, groups: list[_SmGroup]) -> int:
        """Counts the successive waves that are all like this one.

        They are one step of the simulation. All but the last are removed from the waiting blocks
        here.
        """
        if len(groups) != 1 or len(groups[0].batches) != 1:
            return 1
        (batch,) = groups[0].batches
        placed = batch.blocks * groups[0].count
        more = batch.running.unplaced // placed
        if batch.left < 1.0 or more == 0:
            return 1
        batch.running.unplaced -= more * placed
        batch.running.unfinished -= more * placed
        return more + 1

    def _set_speeds(self, groups: list[_SmGroup]) -> None:
        dram = sum(
            batch.running.kernel.dram * batch.blocks * group.count
            for group in groups
            for batch in group.batches
        )
        for group in groups:
            alu = sum(batch.running.kernel.alu * batch.blocks for batch in group.batches)
            group.speed = 1 / max(1.0, alu, dram)
