"""Which algorithms to measure a stage with, chosen from what each costs alone."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from tf_interop.know.profile import AlgorithmMeasurement, KernelMeasurement, SmLimits

_WARP = 32


def combinations_for_pair(
    first: Sequence[AlgorithmMeasurement],
    second: Sequence[AlgorithmMeasurement],
    limits: SmLimits | None,
    *,
    at_most_each: int,
) -> list[tuple[AlgorithmMeasurement, AlgorithmMeasurement]]:
    """Combinations of the fastest algorithms of two convolutions, the most promising first.

    The first is that of the two fastest. Of the others comes first what would end first if the
    shorter ran beside the longer as far as the resources of an SM allow; where these are not
    known, if they ran one after the other.

    Args:
        first: measurements of one convolution, fastest first.
        second: measurements of the other, fastest first.
        limits: of an SM; None where they are not known.
        at_most_each: how many algorithms of each convolution to take.
    """
    fastest, *others = itertools.product(first[:at_most_each], second[:at_most_each])
    if first and second and first[0].configuration == second[0].configuration:
        # Two lanes of one convolution: their order makes no difference worth measuring.
        ranks = {each.algorithm: rank for rank, each in enumerate(first)}
        others = [(a, b) for a, b in others if ranks[a.algorithm] <= ranks[b.algorithm]]
    others.sort(key=lambda pair: _estimated_us(pair[0], pair[1], limits))
    return [fastest, *others]


def _estimated_us(
    first: AlgorithmMeasurement, second: AlgorithmMeasurement, limits: SmLimits | None
) -> float:
    longer = max(first.latency_us, second.latency_us)
    shorter = min(first.latency_us, second.latency_us)
    if limits is None or not first.kernels or not second.kernels:
        return longer + shorter
    return longer + shorter * _crowding(first.kernels, second.kernels, limits)


def _crowding(
    first: Sequence[KernelMeasurement], second: Sequence[KernelMeasurement], limits: SmLimits
) -> float:
    """From 0, where both find room on an SM, to 1, where each fills a resource by itself."""
    ours, theirs = _average_shares(first, limits), _average_shares(second, limits)
    fullest = max(a + b for a, b in zip(ours, theirs, strict=True))
    return min(1.0, max(0.0, fullest - 1))


def _average_shares(
    kernels: Sequence[KernelMeasurement], limits: SmLimits
) -> tuple[float, float, float, float]:
    """Shares of an SM's registers, shared memory, threads and blocks, weighted by time."""
    total = sum(kernel.time_share for kernel in kernels) or 1.0
    sums = [0.0] * 4
    for kernel in kernels:
        for index, share in enumerate(_shares(kernel, limits)):
            sums[index] += share * kernel.time_share / total
    registers, shared_memory, threads, blocks = sums
    return registers, shared_memory, threads, blocks


def _shares(kernel: KernelMeasurement, limits: SmLimits) -> tuple[float, float, float, float]:
    """What a kernel takes of an SM with as many blocks as find room there."""
    threads = kernel.block[0] * kernel.block[1] * kernel.block[2]
    threads = -(-threads // _WARP) * _WARP
    of_a_block = (
        kernel.registers_per_thread * threads / limits.registers,
        (kernel.shared_memory_bytes + limits.reserved_shared_memory_bytes)
        / limits.shared_memory_bytes,
        threads / limits.threads,
        1 / limits.blocks,
    )
    resident = max(1, int(1 / max(of_a_block)))
    registers, shared_memory, thread_share, block_share = (
        min(1.0, share * resident) for share in of_a_block
    )
    return registers, shared_memory, thread_share, block_share
