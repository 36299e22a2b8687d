"""Models a stage's time: thread blocks that share streaming multiprocessors (SMs).

It simulates the device's block scheduler, from measurements of the kernels. Its assumptions, and
their sources:

- Blocks of a kernel are alike. Alone, a kernel runs in waves of as many blocks as fit on all SMs;
  every wave takes its measured latency over the number of waves. So a kernel alone takes what was
  measured.
- A block is placed on the SM with the fewest blocks on which its registers, shared memory, threads
  and the block itself fit (CUDA C++ Programming Guide, "Multiprocessor Level").
- The scheduler serves kernels by their stream's priority, then in the order of their launch, and
  goes to the next one when the last block of the one before has been placed (the leftover policy:
  Olmedo et al., "Dissecting the CUDA scheduling hierarchy", RTAS 2020). It never takes a block off
  an SM.
- Blocks on one SM share its arithmetic units, and all blocks of the device share DRAM. While what
  they would use together is more than there is, all that take part slow down alike. What a block
  would use is the kernel's utilization, measured alone, over the blocks that ran at once. Where it
  was not measured, blocks of one kernel are taken to keep their SMs busy, and DRAM by as much as
  the share of the SMs they are on: two such kernels gain nothing on one SM.
- Launching takes no time: the first kernels of all lanes are ready at once, the others when the
  kernel before them in their lane has ended.

It knows nothing of caches, clocks and tensor cores that throttle, kernels that were written to stay
on their SMs, or lanes with SMs of their own. So its times are called modelled, and measured stages
go before them.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Sequence

from tf_interop.profile.entries import KernelMeasurement
from tf_interop.profile.occupancy import BlockResources, block_resources
from tf_interop.profile.types import SmLimits

# Remaining shares of a block's work below this are rounding.
_DONE = 1e-9


@dataclasses.dataclass(frozen=True, slots=True)
class Device:
    """What kernels run on.

    Attributes:
        limits: of one SM.
        sm_count: its SMs.
    """

    limits: SmLimits
    sm_count: int


@dataclasses.dataclass(frozen=True, slots=True)
class ModelKernel:
    """A GPU kernel as the model sees it.

    Attributes:
        blocks: of its grid.
        registers: of one block, as allocated.
        shared_memory_bytes: of one block, as allocated.
        threads: of one block.
        wave_us: what a block takes, undisturbed.
        alu: the share of its SM's arithmetic units that a block uses then.
        dram: the share of DRAM's throughput.
    """

    blocks: int
    registers: int
    shared_memory_bytes: int
    threads: int
    wave_us: float
    alu: float
    dram: float

    @classmethod
    def of(cls, kernel: KernelMeasurement, latency_us: float, device: Device) -> ModelKernel | None:
        """That of a kernel that was measured alone on the whole device.

        Returns:
            None if not even one block fits on an SM, as far as these limits go.
        """
        sm_count = device.sm_count
        block = block_resources(kernel, device.limits)
        resident = _room(device.limits, block)
        if not resident:
            return None
        blocks = math.prod(kernel.grid)
        at_once = min(blocks, resident * sm_count)
        waves = math.ceil(blocks / at_once)
        # In all its blocks the kernel does the work that was measured; a wave alone slows nothing.
        busiest = 1 / math.ceil(at_once / sm_count)
        alu, dram = busiest, min(at_once, sm_count) / sm_count / at_once
        if kernel.alu_utilization is not None:
            alu = min(busiest, kernel.alu_utilization * sm_count * waves / blocks)
        if kernel.dram_utilization is not None:
            dram = min(1 / at_once, kernel.dram_utilization * waves / blocks)
        resources = (block.registers, block.shared_memory_bytes, block.threads)
        return cls(blocks, *resources, latency_us / waves, alu, dram)

    def demands(self, device: Device) -> tuple[float, ...]:
        """What it takes of the device, each in the time that all of the device would take for it.

        Returns:
            Of registers, shared memory, thread slots, arithmetic units and DRAM, in microseconds.
            Kernels that run together take at least as long as the sum of any one of these.
        """
        block_us = self.blocks * self.wave_us
        on_all_sms = (
            self.registers / device.limits.registers,
            self.shared_memory_bytes / device.limits.shared_memory_bytes,
            self.threads / device.limits.threads,
            self.alu,
        )
        return (*(block_us * each / device.sm_count for each in on_all_sms), block_us * self.dram)


def model_lanes_us(
    lanes: Sequence[Sequence[ModelKernel]], priorities: Sequence[int], device: Device
) -> float:
    """How long lanes take until the last of them has ended, in microseconds.

    Lanes are launched in this order; those with lower priorities go first.
    """
    # Stable: among equal priorities the order of launch.
    order = sorted(range(len(lanes)), key=lambda lane: priorities[lane])
    return _Simulation([lanes[lane] for lane in order], device).run()


@dataclasses.dataclass(slots=True, eq=False)
class _RunningKernel:
    """A kernel of a stream that has been reached."""

    kernel: ModelKernel
    unplaced: int  # Blocks that wait for an SM.
    unfinished: int


@dataclasses.dataclass(slots=True)
class _Batch:
    """Blocks of one kernel that were placed on one SM at the same time."""

    running: _RunningKernel
    blocks: int  # On each SM of the group.
    left: float  # The share of their work that is left.


@dataclasses.dataclass(slots=True)
class _SmGroup:
    """SMs that hold the same blocks, and what is left on each."""

    count: int
    batches: list[_Batch]
    registers: int
    shared_memory_bytes: int
    threads: int
    blocks: int
    speed: float = 1.0  # Of their blocks, 1 being as if alone.

    def split(self, count: int) -> _SmGroup:
        """Leaves so many SMs in this group; returns the others."""
        rest = dataclasses.replace(
            self,
            count=self.count - count,
            batches=[dataclasses.replace(batch) for batch in self.batches],
        )
        self.count = count
        return rest

    def take(self, kernel: ModelKernel, blocks: int) -> None:
        """Takes what blocks of a kernel hold from what is left; gives it back for less than 0."""
        self.registers -= kernel.registers * blocks
        self.shared_memory_bytes -= kernel.shared_memory_bytes * blocks
        self.threads -= kernel.threads * blocks
        self.blocks -= blocks

    def add_block(self, running: _RunningKernel) -> None:
        self.take(running.kernel, 1)
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
                self.take(batch.running.kernel, -batch.blocks)
        self.batches = left

    def content(self) -> tuple[object, ...]:
        """Equal for SMs that hold the same."""
        return tuple((id(batch.running), batch.blocks, batch.left) for batch in self.batches)


def _room(left: SmLimits | _SmGroup, block: BlockResources | ModelKernel) -> int:
    """How many blocks of a kernel fit into what is left on an SM."""
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
        # Of each lane at most one runs.
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
        """Places blocks; after a kernel with blocks that wait, none of the others."""
        for running in self._running:
            if running is None:
                continue
            # Of each group with room: its free block slots, negated, for those with the fewest
            # blocks to come first; a number that tells equal ones apart; the room.
            fitting = [
                (-group.blocks, number, room, group)
                for number, group in enumerate(self._groups)
                if (room := _room(group, running.kernel)) > 0
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
        """How many waves, one after another, the device takes that are all like this one.

        They are taken in one step: all but the last are counted off from the blocks that wait.
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
