"""What a stage takes, modelled: thread blocks that share streaming multiprocessors (SMs).

A simulation of the device's block scheduler, driven by what was measured of the kernels. What it
assumes, and where from:

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
- Lanes with an SM partition have those SMs for themselves; the others share the rest.
- Launching takes no time: the first kernels of all lanes are ready at once, the others when the
  kernel before them in their lane has ended.

It knows nothing of caches, clocks and tensor cores that throttle, or kernels that were written to
stay on their SMs. So its times are called modelled, and measured stages go before them.
"""

from __future__ import annotations

import dataclasses
import heapq
import math

from tf_interop.profile.types import SmLimits
from tf_interop.stage import Lane, Stage

# Remaining shares of a block's work below this are rounding.
_DONE = 1e-9


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


def demands_of(kernel: ModelKernel, limits: SmLimits, sm_count: int) -> tuple[float, ...]:
    """What a kernel takes of the device, each in the time that all of the device would take for it.

    Returns:
        Of registers, shared memory, thread slots, arithmetic units and DRAM, in microseconds.
        Kernels that run together take at least as long as the sum of any one of these.

    Raises:
        ValueError: no block of it fits on an SM.
    """
    share = BlockShare.of(kernel, limits, sm_count)
    block_us = kernel.blocks * share.wave_us
    on_all_sms = (
        kernel.registers / limits.registers,
        kernel.shared_memory_bytes / limits.shared_memory_bytes,
        kernel.threads / limits.threads,
        share.alu,
    )
    return (*(block_us * each / sm_count for each in on_all_sms), block_us * share.dram)


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
        """That of a kernel, which was measured alone on the whole device.

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


def model_stage_us(stage: Stage[ModelKernel], limits: SmLimits, sm_count: int) -> float:
    """Models how long the lanes of a stage take, from its start until the last has ended.

    Args:
        stage: of kernels. Lanes are launched in their order.
        limits: of one SM.
        sm_count: SMs of the device.

    Returns:
        Microseconds.

    Raises:
        ValueError: a kernel fits on no SM, or partitions exceed the device or leave nothing to the
            other lanes.
    """
    sm_counts = [lane.sm_count for lane in stage.lanes]
    shared = sm_count - sum(sm_counts)
    if shared < 0 or (shared == 0 and 0 in sm_counts):
        raise ValueError(
            f"Expected partitions of at most {sm_count} SMs, with some left for lanes that have "
            f"none, got {sm_counts}."
        )
    pools = [_Pool(count, limits) for count in sm_counts if count]
    if 0 in sm_counts:
        pools.append(_Pool(shared, limits))
    own = iter(pools)
    streams = [
        _Stream(lane, next(own) if lane.sm_count else pools[-1], sm_count, limits)
        for lane in stage.lanes
    ]
    return _Simulation(streams, pools).run()


@dataclasses.dataclass(slots=True, eq=False)
class _RunningKernel:
    """A kernel of a stream that has been reached."""

    kernel: ModelKernel
    share: BlockShare
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

    @classmethod
    def empty(cls, count: int, limits: SmLimits) -> _SmGroup:
        left = (limits.registers, limits.shared_memory_bytes, limits.threads, limits.blocks)
        return cls(count, [], *left)

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

    def room(self, kernel: ModelKernel) -> int:
        """How many more blocks of a kernel fit on each SM."""
        if self.registers < kernel.registers or self.blocks == 0:
            return 0
        return min(
            self.blocks,
            self.threads // kernel.threads,
            self.registers // max(kernel.registers, 1),
            self.shared_memory_bytes // max(kernel.shared_memory_bytes, 1),
        )

    def content(self) -> tuple[object, ...]:
        """Equal for SMs that hold the same."""
        return tuple((id(batch.running), batch.blocks, batch.left) for batch in self.batches)


class _Pool:
    """SMs that some lanes share, in groups that hold the same."""

    def __init__(self, sm_count: int, limits: SmLimits) -> None:
        self.groups = [_SmGroup.empty(sm_count, limits)]

    def place(self, running: _RunningKernel) -> None:
        """Places blocks, evenly, until none is left or none fits."""
        # Of each group with room: its free block slots, negated, for those with the fewest blocks
        # to come first; a number that tells equal ones apart; the room.
        fitting = [
            (-group.blocks, number, room, group)
            for number, group in enumerate(self.groups)
            if (room := group.room(running.kernel)) > 0
        ]
        heapq.heapify(fitting)
        while running.unplaced and fitting:
            minus_left, number, room, group = heapq.heappop(fitting)
            if group.count > running.unplaced:
                self.groups.append(group.split(running.unplaced))
            _add_block(group, running)
            running.unplaced -= group.count
            if room > 1:
                heapq.heappush(fitting, (minus_left + 1, number, room - 1, group))

    def join_equal_groups(self) -> None:
        """Makes one group of those that hold the same."""
        joined: dict[tuple[object, ...], _SmGroup] = {}
        for group in self.groups:
            same = joined.setdefault(group.content(), group)
            if same is not group:
                same.count += group.count
        self.groups = list(joined.values())


def _add_block(group: _SmGroup, running: _RunningKernel) -> None:
    group.take(running.kernel, 1)
    for batch in group.batches:
        if batch.running is running and batch.left == 1.0:
            batch.blocks += 1
            return
    group.batches.append(_Batch(running, 1, 1.0))


class _Stream:
    """The kernels of a lane, of which at most one runs."""

    def __init__(
        self,
        lane: Lane[ModelKernel],
        pool: _Pool,
        sm_count: int,
        limits: SmLimits,
    ) -> None:
        self.pool = pool
        self.priority = lane.priority
        self._kernels = iter(lane.operations)
        self._sm_count = sm_count
        self._limits = limits
        self.running = self._start_next()

    def advance(self) -> None:
        """Goes to the next kernel where the one before has ended."""
        while self.running is not None and not self.running.unfinished:
            self.running = self._start_next()

    def _start_next(self) -> _RunningKernel | None:
        kernel = next(self._kernels, None)
        if kernel is None:
            return None
        share = BlockShare.of(kernel, self._limits, self._sm_count)
        return _RunningKernel(kernel, share, kernel.blocks, kernel.blocks)


class _Simulation:
    def __init__(self, streams: list[_Stream], pools: list[_Pool]) -> None:
        # Stable: among equal priorities the order of launch.
        self._streams = sorted(streams, key=lambda stream: stream.priority)
        self._pools = pools

    def run(self) -> float:
        now = 0.0
        while True:
            for stream in self._streams:
                stream.advance()
            self._place()
            groups = [group for pool in self._pools for group in pool.groups if group.batches]
            if not groups:
                return now
            self._set_speeds(groups)
            step = min(
                batch.left * batch.running.share.wave_us / group.speed
                for group in groups
                for batch in group.batches
            )
            now += step * self._whole_waves(groups)
            for group in groups:
                _run_for(group, step)
            for pool in self._pools:
                if len(pool.groups) > 2:
                    pool.join_equal_groups()

    def _whole_waves(self, groups: list[_SmGroup]) -> int:
        """How many waves, one after another, the device takes that are all like this one.

        They are taken in one step: all but the last are counted off from the blocks that wait.
        """
        if len(self._pools) > 1 or len(groups) != 1 or len(groups[0].batches) != 1:
            return 1
        (batch,) = groups[0].batches
        placed = batch.blocks * groups[0].count
        more = batch.running.unplaced // placed
        if batch.left < 1.0 or more == 0:
            return 1
        batch.running.unplaced -= more * placed
        batch.running.unfinished -= more * placed
        return more + 1

    def _place(self) -> None:
        """By priority, then by launch; after a kernel with blocks that wait, none of its pool."""
        blocked: list[_Pool] = []
        for stream in self._streams:
            if stream.running is None or stream.pool in blocked:
                continue
            stream.pool.place(stream.running)
            if stream.running.unplaced:
                blocked.append(stream.pool)

    def _set_speeds(self, groups: list[_SmGroup]) -> None:
        dram = sum(
            batch.running.share.dram * batch.blocks * group.count
            for group in groups
            for batch in group.batches
        )
        for group in groups:
            alu = sum(batch.running.share.alu * batch.blocks for batch in group.batches)
            group.speed = 1 / max(1.0, alu, dram)


def _run_for(group: _SmGroup, step_us: float) -> None:
    left = []
    for batch in group.batches:
        batch.left -= step_us * group.speed / batch.running.share.wave_us
        if batch.left > _DONE:
            left.append(batch)
        else:
            batch.running.unfinished -= batch.blocks * group.count
            group.take(batch.running.kernel, -batch.blocks)
    group.batches = left
