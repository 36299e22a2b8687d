"""Which algorithms to measure a stage with, chosen from what each costs alone."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from tf_interop.profile.entries import AlgorithmMeasurement, KernelMeasurement
from tf_interop.profile.occupancy import compute_occupancy
from tf_interop.profile.types import ProfiledDevice, SmLimits


def combinations_for_pair(
    first: Sequence[AlgorithmMeasurement],
    second: Sequence[AlgorithmMeasurement],
    device: ProfiledDevice | None,
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
        device: what was measured on; None where that is not known.
        at_most_each: how many algorithms of each convolution to take.
    """
    fastest, *others = itertools.product(first[:at_most_each], second[:at_most_each])
    if first and second and first[0].configuration == second[0].configuration:
        # Two lanes of one convolution: their order makes no difference worth measuring.
        ranks = {each.algorithm: rank for rank, each in enumerate(first)}
        others = [(a, b) for a, b in others if ranks[a.algorithm] <= ranks[b.algorithm]]
    others.sort(key=lambda pair: _estimated_us(pair[0], pair[1], device))
    return [fastest, *others]


def _estimated_us(
    first: AlgorithmMeasurement, second: AlgorithmMeasurement, device: ProfiledDevice | None
) -> float:
    longer = max(first.latency_us, second.latency_us)
    shorter = min(first.latency_us, second.latency_us)
    if device is None or device.sm_limits is None or not first.kernels or not second.kernels:
        return longer + shorter
    ours, theirs = (
        _average_shares(each.kernels, device.sm_limits, device.sm_count) for each in (first, second)
    )
    return longer + shorter * _crowding(ours, theirs)


def _crowding(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """From 0, where both find room on an SM, to 1, where each fills a resource by itself."""
    fullest = max(a + b for a, b in zip(ours, theirs, strict=True))
    return min(1.0, max(0.0, fullest - 1))


def _average_shares(
    kernels: Sequence[KernelMeasurement], limits: SmLimits, sm_count: int
) -> tuple[float, float, float, float]:
    """Shares of an SM's registers, shared memory, threads and blocks, weighted by time."""
    total = sum(kernel.time_share for kernel in kernels) or 1.0
    shares = [0.0] * 4
    for kernel in kernels:
        alone = compute_occupancy(kernel, limits, sm_count)
        for index, share in enumerate(
            (alone.registers, alone.shared_memory, alone.threads, alone.blocks)
        ):
            shares[index] += share * kernel.time_share / total
    registers, shared_memory, threads, blocks = shares
    return registers, shared_memory, threads, blocks
