"""Tables of what profiles hold, for people to read: at most 100 columns wide, or the terminal."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from tf_interop.convolution import ConvolutionConfiguration
from tf_interop.profile.difference import ProfileDifference
from tf_interop.profile.entries import (
    AlgorithmFailure,
    AlgorithmMeasurement,
    Entry,
    KernelMeasurement,
    StageMeasurement,
    fastest_first,
    wins,
)
from tf_interop.profile.nsight_compute import NsightImport
from tf_interop.profile.occupancy import compute_occupancy
from tf_interop.profile.pairs import count_pairs
from tf_interop.profile.paper import PaperKernel, load_paper_tables
from tf_interop.profile.types import Profile, ProfiledDevice
from tf_interop.stage import Stage
from tf_interop.tables import UNKNOWN, new_table, percent, print_on

_MOST_LAUNCHES = 20


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
    print_on(console, str(count_pairs(profile)))


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
    paper = load_paper_tables()
    print_on(console, describe_device(profile.device))
    print_on(console, "\nTable 1: what the kernel that takes most time takes of one SM")
    if not any(each.kernels for each in profile.algorithms):
        print_on(console, _why_no_kernels(profile.device))
    headings = ("of time", "registers", "shared", "threads", "blocks", "ALU", "stalls")
    for configuration, measured in _by_configuration(profile):
        if any(each.kernels for each in measured):
            table = _paper_table(describe_convolution(configuration), headings)
            for each in measured:
                table.add_row(_algorithm_label(each), *_kernel_cells(each, profile.device))
            print_on(console, table)
    table = _paper_table(f"Paper, {paper.table_1.layers or 'its two layers'}", headings)
    for row in paper.table_1.rows:
        table.add_row(row.algorithm, UNKNOWN, *_paper_cells(row))
    print_on(console, table)

    print_on(console, "\nTable 2: time and workspace")
    for configuration, measured in _by_configuration(profile):
        table = _paper_table(describe_convolution(configuration), ("ms", "workspace"))
        for each in measured:
            time = f"{each.latency_us / 1000:.4f}"
            table.add_row(_algorithm_label(each), time, decimal(each.workspace_bytes))
        print_on(console, table)
    layers = paper.table_2.layers or "one 5x5 convolution"
    table = _paper_table(f"Paper, {layers}", ("ms", "workspace"))
    for cost in paper.table_2.rows:
        table.add_row(cost.algorithm, f"{cost.time_ms:g}", cost.workspace)
    print_on(console, table)
    print_on(console, f"\nPaper: {paper.source}. {paper.note}")


def show_difference(difference: ProfileDifference, console: Console | None = None) -> None:
    """Prints how two profiles differ.

    Args:
        difference: what `diff_profiles` gave.
        console: where to print; by default stdout.
    """
    console = console or Console()
    if difference.other_device is not None:
        print_on(console, f"The second profile is of another device: {difference.other_device}")
    latencies = [
        (
            _describe_entry(each.first),
            f"{each.first.latency_us:.1f}",
            f"{each.second.latency_us:.1f}",
            f"{each.ratio:.2f}",
        )
        for each in difference.latency_changes
    ]
    outcomes = [
        (_describe_entry(each.first), _outcome(each.first), _outcome(each.second))
        for each in difference.outcome_changes
    ]
    only = {
        name: [(_describe_entry(each), _outcome(each)) for each in entries]
        for name, entries in (
            ("first", difference.only_first),
            ("second", difference.only_second),
        )
    }
    what = "convolution and algorithm"
    for title, columns, numbers, rows in (
        (
            "Latencies further apart than both spreads",
            (what,),
            ("first us", "second us", "ratio"),
            latencies,
        ),
        ("Measured in one, failed in the other", (what, "first", "second"), (), outcomes),
        ("In the first only", (what, "outcome"), (), only["first"]),
        ("In the second only", (what, "outcome"), (), only["second"]),
    ):
        if rows:
            print_on(console, _table(title, columns, numbers, rows))
    print_on(console, f"{difference.same_count} entries tell the same in both.")


def show_nsight_import(result: NsightImport, console: Console | None = None) -> None:
    """Prints what an import of Nsight Compute's values found, and what it did not.

    Args:
        result: what `add_nsight_values` gave.
        console: where to print; by default stdout.
    """
    console = console or Console()
    print_on(console, f"Values for {len(result.matched)} launches of kernels of the profile.")
    for title, launches in (
        ("Launches that the profile has no kernel for", result.not_in_profile),
        ("Kernels of the profile without values", result.not_in_csv),
    ):
        rows = [(each.function, _sizes(each.grid), _sizes(each.block)) for each in launches]
        if len(rows) > _MOST_LAUNCHES:
            rows[_MOST_LAUNCHES:] = [(f"and {len(rows) - _MOST_LAUNCHES} more", "", "")]
        if rows:
            print_on(console, _table(title, ("function", "grid", "block"), (), rows))


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


def _sizes(shape: Sequence[int | None] | None) -> str:
    if shape is None:
        return "?"
    return "x".join("?" if size is None else str(size) for size in shape)


def _square(sizes: Sequence[int]) -> str:
    return str(sizes[0]) if len(set(sizes)) == 1 else _sizes(sizes)


def describe_device(device: ProfiledDevice) -> str:
    """What was measured on, with its software, in one line."""
    if device.backend == "host":
        return f"{device.name}, {device.sm_count} cores, backend host, {device.date}"
    clocks = ", ".join(f"{name} {clock} MHz" for name, clock in sorted(device.clocks_mhz.items()))
    software = [f"cuDNN {device.cudnn}", f"CUDA {device.cuda}"]
    # NVML tells the driver; a container may be without it.
    if device.driver:
        software.append(f"driver {device.driver}")
    hardware = (
        f"{device.name}, compute capability {device.compute_capability}, {device.sm_count} SMs, "
        f"{decimal(device.memory_bytes)}"
    )
    return "; ".join(filter(None, (hardware, ", ".join(software), clocks, device.date)))


def _table(
    title: str, columns: Sequence[str], numbers: Sequence[str], rows: Iterable[Sequence[str]] = ()
) -> Table:
    """A table of these rows: columns of text, then those of numbers."""
    table = new_table(title)
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
            label += f"\n  {_algorithm_label(fastest)}"
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
    )
    table.leading = 1
    for each in profile.stages:
        times = (each.latency_us, each.same_sequential_us, each.sequential_us, each.spread_us)
        table.add_row(
            describe_stage(each.stage),
            *(f"{time:.1f}" for time in times),
            f"{each.sequential_us / each.latency_us:.2f}",
            "yes" if wins(each) else "no",
        )
    for failure in profile.stage_failures:
        table.add_row(f"{describe_stage(failure.stage)}\n  {failure.kind.value}: {failure.reason}")
    return table


def _why_no_kernels(device: ProfiledDevice) -> str:
    if device.backend == "host":
        return "SM resources and stalls are of GPU kernels: of a CPU there are none to show."
    return "SM resources and stalls are of kernels, and none was traced: measure --trace-kernels."


def _paper_table(title: str, headings: Sequence[str]) -> Table:
    """One of several tables that stand below each other, with columns of the same width."""
    table = new_table(title)
    table.add_column("algorithm", width=38, overflow="fold")
    for heading in headings:
        table.add_column(heading, justify="right", width=max(len(heading), 6))
    return table


def _kernel_cells(measurement: AlgorithmMeasurement, device: ProfiledDevice) -> tuple[str, ...]:
    kernel = max(measurement.kernels, key=lambda each: each.time_share, default=None)
    if kernel is None:
        return (UNKNOWN,) * 7
    return (
        percent(kernel.time_share),
        *_occupancy_cells(kernel, device),
        percent(kernel.alu_utilization),
        percent(kernel.memory_stall),
    )


def _occupancy_cells(kernel: KernelMeasurement, device: ProfiledDevice) -> tuple[str, ...]:
    if device.sm_limits is None:
        return (UNKNOWN,) * 4
    taken = compute_occupancy(kernel, device.sm_limits, device.sm_count)
    shares = (taken.registers, taken.shared_memory, taken.threads, taken.blocks)
    return tuple(percent(share) for share in shares)


def _paper_cells(row: PaperKernel) -> tuple[str, ...]:
    shares = (row.registers, row.shared_memory, row.threads, row.blocks)
    return tuple(percent(share) for share in (*shares, row.alu_utilization, row.memory_stall))


def _algorithm_label(entry: AlgorithmMeasurement | AlgorithmFailure) -> str:
    return f"{entry.algorithm} (TF32)" if entry.tf32 else entry.algorithm


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


def _describe_entry(entry: Entry) -> str:
    if isinstance(entry, (AlgorithmMeasurement, AlgorithmFailure)):
        return f"{describe_convolution(entry.configuration)}, {_algorithm_label(entry)}"
    return describe_stage(entry.stage)


def _outcome(entry: Entry) -> str:
    if isinstance(entry, (AlgorithmMeasurement, StageMeasurement)):
        return f"{entry.latency_us:.1f} us"
    return f"{entry.kind.value}: {entry.reason}"
