"""What profiles hold, for people to read: at most 100 columns wide, or the terminal."""

from __future__ import annotations

import collections
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from tf_interop.convolution import ConvolutionConfiguration
from tf_interop.profile.difference import Change, ProfileDifference
from tf_interop.profile.entries import (
    AlgorithmFailure,
    AlgorithmMeasurement,
    Entry,
    StageMeasurement,
    fastest_first,
    wins,
)
from tf_interop.profile.occupancy import compute_sm_use
from tf_interop.profile.types import Profile, ProfiledDevice
from tf_interop.stage import Stage
from tf_interop.tables import UNKNOWN, new_table, percent, print_on

_MOST_WINNERS = 10

# The paper's tables, as far as their values are known here: which GPU and which layers is not.
_PAPER = (
    "Pourghassemi et al., On the Limits of Parallelizing Convolutional Neural Networks on GPUs, "
    "SPAA 2020, doi 10.1145/3350755.3400266"
)
_PAPER_TABLE_1 = (
    ("PRECOMP_GEMM", None, 0.92, 0.39, None, None, 0.70, None),
    ("FFT_TILING", None, 0.38, 0.75, None, None, 0.30, 0.15),
)
_PAPER_TABLE_2 = (
    ("FFT", "36", "2.2 GB"),
    ("WINOGRAD_NONFUSED", "46", "691 MB"),
    ("PRECOMP_GEMM", "126", "4.8 GB"),
)


def show_profile(profile: Profile, console: Console | None = None) -> None:
    """Prints what a profile holds: device, convolutions with their fastest algorithm, stages.

    Args:
        profile: any profile.
        console: where to print; by default stdout.
    """
    console = console or Console()
    print_on(console, describe_device(profile.device))
    if profile.algorithms or profile.algorithm_failures:
        print_on(console, _convolution_table(profile))
    if profile.stages or profile.stage_failures:
        print_on(console, _stage_table(profile))
    print_on(console, describe_pairs(profile))


def show_summary(profile: Profile, path: str, console: Console | None = None) -> None:
    """Prints how much a profile holds, and the sets of convolutions that are faster together.

    Args:
        profile: any profile.
        path: its file, for what to do to see all of it.
        console: where to print; by default stdout.
    """
    console = console or Console()
    convolutions = {entry.configuration for entry in profile.algorithms}
    failures = len(profile.algorithm_failures) + len(profile.stage_failures)
    print_on(console, describe_device(profile.device))
    print_on(
        console,
        f"Measured: {len(convolutions)} convolutions, with {len(profile.algorithms)} algorithms in "
        f"all, and {len(profile.stages)} stages; {failures} failed.",
    )
    winners = _winners(profile.stages)
    more = len(winners) - _MOST_WINNERS
    if winners:
        rows = (
            (
                describe_stage(each.stage),
                f"{each.latency_us:.1f}",
                f"{each.sequential_us:.1f}",
                f"{_ratio(each):.2f}",
            )
            for each in winners[:_MOST_WINNERS]
        )
        title = "Faster together than in sequence, by more than the spread"
        numbers = ("together us", "in sequence us", "times as fast")
        print_on(console, _table(title, ("convolutions",), numbers, rows, leading=1))
    elif profile.stages:
        print_on(console, "No set of convolutions beat its sequence on this device.")
    print_on(
        console,
        f"\n{f'And {more} more sets. ' if more > 0 else ''}All of it: tf-interop profile show "
        f"{shlex.quote(path)}",
    )


def show_like_paper(profile: Profile, console: Console | None = None) -> None:
    """Prints a profile in the form of the paper's Tables 1 and 2, with the paper's own values.

    Pourghassemi et al., SPAA 2020. Table 1 says what the kernel that takes most of an algorithm's
    time takes of an SM, Table 2 what algorithms cost. What is not known is a dash; for a profile
    that knows no kernel one line says why.

    Args:
        profile: any profile.
        console: where to print; by default stdout.
    """
    console = console or Console()
    measured = _by_configuration(profile)
    print_on(console, describe_device(profile.device))

    print_on(console, "\nTable 1: what the kernel that takes most time takes of one SM")
    if not any(each.kernels for each in profile.algorithms):
        print_on(console, _why_no_kernels(profile.device))
    headings = ("of time", "registers", "shared", "threads", "blocks", "ALU", "stalls")
    for configuration, entries in measured:
        if any(each.kernels for each in entries):
            rows = [(_label(each), *_kernel_shares(each, profile.device)) for each in entries]
            print_on(console, _shares_table(describe_convolution(configuration), headings, rows))
    print_on(console, _shares_table("Paper, its two layers", headings, _PAPER_TABLE_1))

    print_on(console, "\nTable 2: time and workspace")
    for configuration, entries in measured:
        costs = (
            (_label(each), f"{each.latency_us / 1000:.4f}", decimal(each.workspace_bytes))
            for each in entries
        )
        title = describe_convolution(configuration)
        print_on(console, _paper_table(title, ("ms", "workspace"), costs))
    title = "Paper, one 5x5 convolution"
    print_on(console, _paper_table(title, ("ms", "workspace"), _PAPER_TABLE_2))
    print_on(console, f"\nPaper: {_PAPER}.")


def show_difference(difference: ProfileDifference, console: Console | None = None) -> None:
    """Prints how two profiles differ.

    Args:
        difference: what `diff_profiles` gave.
        console: where to print; by default stdout.
    """
    console = console or Console()
    if difference.other_device is not None:
        print_on(console, f"The second profile is of another device: {difference.other_device}")
    both, one = ("first", "second"), ("outcome",)
    for title, columns, found in (
        ("Latencies further apart than both spreads", both, difference.latency_changes),
        ("Measured in one, failed in the other", both, difference.outcome_changes),
        ("In the first only", one, difference.only_first),
        ("In the second only", one, difference.only_second),
    ):
        rows = []
        for each in found:
            told = (each.first, each.second) if isinstance(each, Change) else (each,)
            rows.append((_describe_entry(told[0]), *map(_outcome, told)))
        if rows:
            print_on(console, _table(title, ("convolution and algorithm", *columns), (), rows))
    print_on(console, f"{difference.same_count} entries tell the same in both.")


def describe_pairs(profile: Profile) -> str:
    """How often what is fastest alone is not in the fastest pair, in one sentence.

    Pairs are two convolutions on lanes of their own that share all SMs alike. Those count that were
    measured with several combinations of algorithms, one of them of what is fastest alone.
    """
    measured: dict[object, list[StageMeasurement]] = collections.defaultdict(list)
    for each in profile.stages:
        lanes = each.stage.lanes
        if [len(lane.steps) for lane in lanes] == [1, 1] and not each.stage.has_lane_options:
            measured[frozenset(each.stage.operations), each.tf32].append(each)

    def is_of_fastest_alone(pair: StageMeasurement) -> bool:
        found = (
            (step, profile.find_algorithms(step.operation, allow_tf32=pair.tf32))
            for step in pair.stage.steps
        )
        return all(alone and alone[0].algorithm == step.algorithm for step, alone in found)

    pairs = others = beyond_spread = winning = 0
    for ways in measured.values():
        by_latency = sorted(ways, key=lambda each: each.latency_us)
        alone = next(filter(is_of_fastest_alone, by_latency), None)
        if alone is None or len(ways) == 1:
            continue
        fastest = by_latency[0]
        pairs += 1
        winning += wins(fastest)
        if not is_of_fastest_alone(fastest):
            others += 1
            saved_us = alone.latency_us - fastest.latency_us
            beyond_spread += saved_us > fastest.spread_us + alone.spread_us
    if not pairs:
        return "No pair was measured with several combinations of algorithms."
    return (
        f"Of {pairs} pairs {others} are fastest with an algorithm that is not the fastest alone "
        f"({beyond_spread} by more than the spread); {winning} beat their sequence."
    )


def describe_convolution(configuration: ConvolutionConfiguration) -> str:
    """A configuration in one line, such as `forward 8x56x56x64 * 3x3x64x96 /2 NHWC float32`.

    Image, filter, strides; then, as far as they are not the usual ones, dilations, padding and
    fused operations.
    """
    words = [
        configuration.kind.value,
        f"{_sizes(configuration.image_shape)} * {_sizes(configuration.filter_shape)}",
    ]
    if configuration.depthwise:
        words.insert(1, "depthwise")
    if set(configuration.strides) != {1}:
        words.append("/" + _square(configuration.strides))
    if set(configuration.dilations) != {1}:
        words.append("dilated " + _square(configuration.dilations))
    if configuration.padding == "EXPLICIT":
        words.append("padded " + ",".join(map(str, configuration.explicit_paddings)))
    elif configuration.padding != "SAME":
        words.append(configuration.padding)
    words += [configuration.layout, configuration.dtype]
    return " ".join(words + ["+" + op for op in configuration.fused_ops])


def describe_device(device: ProfiledDevice) -> str:
    """What was measured on, with its software, in one line."""
    if device.backend == "host":
        return f"{device.name}, {device.sm_count} cores, backend host, {device.date}"
    clocks = ", ".join(f"{name} {clock} MHz" for name, clock in sorted(device.clocks_mhz.items()))
    # NVML tells the driver; a container may be without it.
    driver = f", driver {device.driver}" if device.driver else ""
    hardware = (
        f"{device.name}, compute capability {device.compute_capability}, {device.sm_count} SMs, "
        f"{decimal(device.memory_bytes)}"
    )
    software = f"cuDNN {device.cudnn}, CUDA {device.cuda}{driver}"
    return "; ".join(filter(None, (hardware, software, clocks, device.date)))


def describe_stage(stage: Stage[ConvolutionConfiguration]) -> str:
    """A line for each convolution of a stage, and how it is launched where that is not as usual."""
    lines = [
        f"{lane}: {describe_convolution(step.operation)}, {step.algorithm or 'any'}"
        for lane, step in zip(stage.lane_of_step, stage.steps, strict=True)
    ]
    for words, values in (
        ("SMs", [each.sm_count for each in stage.lanes]),
        ("priorities", [each.priority for each in stage.lanes]),
    ):
        if any(values):
            lines.append(f"{words} {', '.join(map(str, values))}")
    merged = [str(number) for number, lane in enumerate(stage.lanes) if lane.merged]
    if merged:
        lines.append(f"merged into a wider convolution: {', '.join(merged)}")
    return "\n".join(lines)


def _sizes(shape: Sequence[int | None] | None) -> str:
    if shape is None:
        return "?"
    return "x".join("?" if size is None else str(size) for size in shape)


def _square(sizes: Sequence[int]) -> str:
    return str(sizes[0]) if len(set(sizes)) == 1 else _sizes(sizes)


def _table(
    title: str,
    columns: Sequence[str],
    numbers: Sequence[str],
    rows: Iterable[Sequence[str]] = (),
    *,
    leading: int = 0,
) -> Table:
    """A table of these rows: columns of text, then those of numbers."""
    table = new_table(title)
    table.leading = leading
    for heading in columns:
        table.add_column(heading, overflow="fold")
    for heading in numbers:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*row)
    return table


def _by_configuration(
    profile: Profile,
) -> list[tuple[ConvolutionConfiguration, tuple[AlgorithmMeasurement, ...]]]:
    """Each configuration, in the order of the profile, with what was measured, fastest first."""
    measured: dict[ConvolutionConfiguration, list[AlgorithmMeasurement]] = {}
    for entry in profile.algorithms:
        measured.setdefault(entry.configuration, []).append(entry)
    for failure in profile.algorithm_failures:
        measured.setdefault(failure.configuration, [])
    return [(configuration, fastest_first(each)) for configuration, each in measured.items()]


def _convolution_table(profile: Profile) -> Table:
    failures: dict[ConvolutionConfiguration, collections.Counter[str]]
    failures = collections.defaultdict(collections.Counter)
    for failure in profile.algorithm_failures:
        failures[failure.configuration][failure.kind.value] += 1
    table = _table(
        "Convolutions",
        ("convolution, fastest algorithm",),
        ("us", "spread", "workspace", "measured"),
    )
    table.add_column("failed", overflow="fold")
    for configuration, measured in _by_configuration(profile):
        label = describe_convolution(configuration)
        cells = (UNKNOWN,) * 3
        if measured:
            fastest = measured[0]
            label += f"\n  {_label(fastest)}"
            times = (f"{fastest.latency_us:.1f}", f"{fastest.spread_us:.1f}")
            cells = (*times, decimal(fastest.workspace_bytes))
        failed = sorted(failures[configuration].items())
        words = "\n".join(f"{count} {kind}" for kind, count in failed)
        table.add_row(label, *cells, str(len(measured)), words)
    return table


def _stage_table(profile: Profile) -> Table:
    table = _table(
        "Stages: together, and in sequence with the same and the fastest algorithms",
        ("convolutions",),
        ("together us", "same us", "fastest us", "spread", "ratio", "wins"),
        leading=1,
    )
    for each in profile.stages:
        times = (each.latency_us, each.same_sequential_us, each.sequential_us, each.spread_us)
        table.add_row(
            describe_stage(each.stage),
            *(f"{time:.1f}" for time in times),
            f"{_ratio(each):.2f}",
            "yes" if wins(each) else "no",
        )
    for failure in profile.stage_failures:
        table.add_row(f"{describe_stage(failure.stage)}\n  {failure.kind.value}: {failure.reason}")
    return table


def _winners(stages: Iterable[StageMeasurement]) -> list[StageMeasurement]:
    """Of each set of convolutions its fastest stage, where that wins; the largest ratio first."""
    fastest: dict[object, StageMeasurement] = {}
    for stage in stages:
        operations = collections.Counter(stage.stage.operations)
        key = frozenset(operations.items()), stage.tf32
        if key not in fastest or stage.latency_us < fastest[key].latency_us:
            fastest[key] = stage
    return sorted(filter(wins, fastest.values()), key=_ratio, reverse=True)


def _ratio(stage: StageMeasurement) -> float:
    return stage.sequential_us / stage.latency_us


def _why_no_kernels(device: ProfiledDevice) -> str:
    if device.backend == "host":
        return "SM resources and stalls are of GPU kernels: of a CPU there are none to show."
    return "SM resources and stalls are of kernels, and none was traced: measure --trace-kernels."


def _paper_table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """One of several tables that stand below each other, with columns of the same width."""
    table = new_table(title)
    table.add_column("algorithm", width=38, overflow="fold")
    for heading in headings:
        table.add_column(heading, justify="right", width=max(len(heading), 6))
    for row in rows:
        table.add_row(*row)
    return table


def _shares_table(title: str, headings: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> Table:
    """Of names and shares between 0 and 1."""
    return _paper_table(title, headings, ((name, *map(percent, its)) for name, *its in rows))


def _kernel_shares(
    measurement: AlgorithmMeasurement, device: ProfiledDevice
) -> tuple[float | None, ...]:
    kernel = max(measurement.kernels, key=lambda each: each.time_share, default=None)
    if kernel is None or device.sm_limits is None:
        return (None,) * 7
    use = compute_sm_use(kernel, device.sm_limits, device.sm_count)
    shares = (use.registers, use.shared_memory, use.threads, use.blocks)
    return (kernel.time_share, *shares, use.alu_utilization, use.memory_stall)


def _label(entry: AlgorithmMeasurement | AlgorithmFailure) -> str:
    return f"{entry.algorithm} (TF32)" if entry.tf32 else entry.algorithm


def _describe_entry(entry: Entry) -> str:
    if isinstance(entry, (AlgorithmMeasurement, AlgorithmFailure)):
        return f"{describe_convolution(entry.configuration)}, {_label(entry)}"
    return describe_stage(entry.stage)


def _outcome(entry: Entry) -> str:
    if isinstance(entry, (AlgorithmMeasurement, StageMeasurement)):
        return f"{entry.latency_us:.1f} us"
    return f"{entry.kind.value}: {entry.reason}"
