"""Prints profiles."""

from __future__ import annotations

import collections
import shlex
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from tf_interop.convolution import ConvolutionConfiguration
from tf_interop.profile.entries import (
    AlgorithmMeasurement,
    StageFailure,
    StageMeasurement,
    fastest_first,
)
from tf_interop.profile.types import Profile, ProfiledDevice
from tf_interop.stage import Stage
from tf_interop.terminal import UNKNOWN, count_of, new_table, print_on


def show_profile(profile: Profile, console: Console) -> None:
    """Prints the device, the convolutions with their fastest algorithm, and the stages."""
    print_on(console, describe_device(profile.device))
    if profile.algorithms or profile.algorithm_failures:
        print_on(console, _convolution_table(profile))
    if profile.stages or profile.stage_failures:
        print_on(console, _stage_table(profile.stages, profile.stage_failures))


def show_summary(profile: Profile, path: str, console: Console) -> None:
    """Prints the numbers of entries; for the rest it refers to the file at `path`."""
    convolutions = {entry.configuration for entry in profile.algorithms}
    failures = len(profile.algorithm_failures) + len(profile.stage_failures)
    print_on(console, describe_device(profile.device))
    print_on(
        console,
        f"Measured: {count_of(len(convolutions), 'convolution')}, with "
        f"{count_of(len(profile.algorithms), 'algorithm')} in all, and "
        f"{count_of(len(profile.stages), 'stage')}; {failures} failed.",
    )
    if profile.stages:
        faster = sum(each.wins for each in profile.stages)
        print_on(
            console,
            f"{faster} of {count_of(len(profile.stages), 'stage')} ran faster than the "
            "convolutions one after another, by more than the spread.",
        )
    print_on(console, f"To see everything: tf-interop show {shlex.quote(path)}")


def describe_convolution(configuration: ConvolutionConfiguration) -> str:
    """Describes a convolution, such as `forward 8x56x56x64 * 3x3x64x96 /2 NHWC float32`.

    Image, filter, and strides come first. Usual strides, dilations and padding are left out.
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
    """Describes a device and its software in one line."""
    if device.backend == "host":
        return f"{device.name}, {device.sm_count} cores, backend host, {device.date}"
    clocks = ", ".join(f"{name} {clock} MHz" for name, clock in sorted(device.clocks_mhz.items()))
    # The driver's version comes from NVML, which a container may lack.
    driver = f", driver {device.driver}" if device.driver else ""
    hardware = (
        f"{device.name}, compute capability {device.compute_capability}, {device.sm_count} SMs, "
        f"{decimal(device.memory_bytes)}"
    )
    software = f"cuDNN {device.cudnn}, CUDA {device.cuda}{driver}"
    return "; ".join(filter(None, (hardware, software, clocks, device.date)))


def describe_stage(stage: Stage[ConvolutionConfiguration]) -> str:
    """Describes the convolutions of a stage and their lane options, one per line."""
    lines = [
        f"{lane}: {describe_convolution(step.operation)}, {step.algorithm or 'any'}"
        for lane, step in zip(stage.lane_of_step, stage.steps, strict=True)
    ]
    for number, each in enumerate(stage.lanes):
        options = each.describe_options()
        if options:
            lines.append(f"lane {number}: {options}")
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


def _convolution_table(profile: Profile) -> Table:
    measured: dict[ConvolutionConfiguration, list[AlgorithmMeasurement]] = {}
    for entry in profile.algorithms:
        measured.setdefault(entry.configuration, []).append(entry)
    failures: dict[ConvolutionConfiguration, collections.Counter[str]]
    failures = collections.defaultdict(collections.Counter)
    for failure in profile.algorithm_failures:
        measured.setdefault(failure.configuration, [])
        failures[failure.configuration][failure.kind.value] += 1
    numbers = ("µs", "spread", "workspace", "measured")
    table = new_table("Convolutions", "convolution, fastest algorithm", *numbers)
    table.add_column("failed", overflow="fold")
    for configuration, algorithms in measured.items():
        label = describe_convolution(configuration)
        cells = (UNKNOWN,) * 3
        if algorithms:
            fastest = fastest_first(algorithms)[0]
            label += f"\n  {fastest.algorithm}{' (TF32)' if fastest.tf32 else ''}"
            times = (f"{fastest.latency_us:.1f}", f"{fastest.spread_us:.1f}")
            cells = (*times, decimal(fastest.workspace_bytes))
        failed = sorted(failures[configuration].items())
        words = "\n".join(f"{count} {kind}" for kind, count in failed)
        table.add_row(label, *cells, str(len(algorithms)), words)
    return table


def _stage_table(stages: Iterable[StageMeasurement], failures: Iterable[StageFailure]) -> Table:
    table = new_table(
        "Stages: together, and in sequence with the same and the fastest algorithms",
        "convolutions",
    )
    table.leading = 1
    for heading in ("together µs", "same µs", "fastest µs", "spread", "ratio", "wins"):
        table.add_column(heading, justify="right")
    for each in stages:
        times = (each.latency_us, each.same_sequential_us, each.sequential_us, each.spread_us)
        table.add_row(
            describe_stage(each.stage),
            *(f"{time:.1f}" for time in times),
            f"{each.sequential_us / each.latency_us:.2f}",
            "yes" if each.wins else "no",
        )
    for failure in failures:
        table.add_row(f"{describe_stage(failure.stage)}\n  {failure.kind.value}: {failure.reason}")
    return table
