"""A picture of a benchmark: how many times as fast as stock TensorFlow each variant is."""

from __future__ import annotations

import io
import pathlib
from typing import Any

from tf_interop.benchmark.result import Benchmark, Case, CaseResult, Variant
from tf_interop.errors import BenchmarkError
from tf_interop.profile.types import ProfiledDevice
from tf_interop.versioned_file import write_file

# Of Okabe and Ito, which people see apart who do not see all colours.
_COLOURS = {
    Variant.STOCK: "#999999",
    Variant.XLA: "#E69F00",
    Variant.OURS: "#0072B2",
    Variant.PINNING: "#56B4E9",
    Variant.CONCURRENCY: "#009E73",
}
_PANEL_INCHES = (4.2, 3.0)
_MOST_COLUMNS = 3
_GROUP_WIDTH = 0.8


def write_plot(benchmark: Benchmark, path: pathlib.Path) -> None:
    """Draws a panel for each model, mode and precision, with the batch sizes side by side.

    Args:
        benchmark: what to draw; a variant without values, or without stock TensorFlow to compare
            it with, is left out, and the panel says so.
        path: the picture; its suffix says which kind, such as `.png` or `.svg`.

    Raises:
        BenchmarkError: matplotlib is not installed, there is nothing to draw, or the file cannot be
            written.
    """
    check_plot(path)
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    panels = _panels(benchmark)
    if not panels:
        raise BenchmarkError(f"Expected results to draw in '{path}', got none. Measure first.")
    columns = min(len(panels), _MOST_COLUMNS)
    rows = -(-len(panels) // columns)
    figure = Figure(
        figsize=(_PANEL_INCHES[0] * columns, _PANEL_INCHES[1] * rows + 0.8), layout="constrained"
    )
    axes = figure.subplots(rows, columns, squeeze=False).flat
    for panel, (title, results) in zip(axes, panels.items(), strict=False):
        _draw(panel, title, results)
    for unused in list(axes)[len(panels) :]:
        unused.set_axis_off()
    device = benchmark.device
    tensorflow = benchmark.made_with.get("tensorflow", "")
    figure.suptitle(f"{device.name}, TensorFlow {tensorflow}, {device.date}", fontsize=10)
    variants = {each.variant for _, each in benchmark.variant_results if each.blocks}
    figure.legend(
        handles=[
            Patch(color=_COLOURS[variant], label=variant.value)
            for variant in Variant
            if variant in variants
        ],
        loc="outside lower center",
        ncols=min(len(variants), 3 * columns),
        fontsize=8,
        frameon=False,
    )
    picture = io.BytesIO()
    figure.savefig(picture, dpi=150, format=_kind_of(path))
    write_file(picture.getvalue(), path, "plot", BenchmarkError)


def check_plot(path: pathlib.Path) -> None:
    """Checks that a plot can be drawn, before there is anything to draw.

    Raises:
        BenchmarkError: matplotlib is not installed, or draws no pictures of this kind.
    """
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError as error:
        raise BenchmarkError(
            f"Expected matplotlib for the plot '{path}', got none. Install it, as with pip install "
            "tf-interop[report]."
        ) from error
    kinds = FigureCanvasBase.get_supported_filetypes()
    if _kind_of(path) not in kinds:
        raise BenchmarkError(
            f"Expected a picture that ends in one of {', '.join(f'.{kind}' for kind in kinds)}, "
            f"got '{path}'. Choose another name."
        )


def _kind_of(path: pathlib.Path) -> str:
    return path.suffix[1:].lower() or "png"


def _panels(benchmark: Benchmark) -> dict[str, list[CaseResult]]:
    panels: dict[str, list[CaseResult]] = {}
    for result in benchmark.results:
        panels.setdefault(_title(result.case, benchmark.device), []).append(result)
    return panels


def _title(case: Case, device: ProfiledDevice) -> str:
    model = case.model.rpartition(":")[2]
    size = "" if case.image_size is None else f", {case.image_size[0]}x{case.image_size[1]}"
    precision = case.precision.computed_on(device)
    return f"{model}, {case.mode.value}, {precision.value}{size}"


def _draw(panel: Any, title: str, results: list[CaseResult]) -> None:
    batches = sorted({result.case.batch_size for result in results})
    there = {measured.variant for result in results for measured in result.variants}
    variants = [each for each in Variant if each in there]
    width = _GROUP_WIDTH / len(variants)
    missing = []
    for result in results:
        batch = result.case.batch_size
        for variant in (measured.variant for measured in result.variants):
            summary = result.summarize(variant)
            speedup = None if summary is None else summary.speedup
            if speedup is None:
                why = " (as stock)" if summary is not None and summary.ran_as_stock else ""
                missing.append(f"{variant.value} at {batch}{why}")
                continue
            whiskers = [[speedup.median - speedup.lowest], [speedup.highest - speedup.median]]
            panel.bar(
                batches.index(batch) + width * (variants.index(variant) - (len(variants) - 1) / 2),
                speedup.median,
                width,
                color=_COLOURS[variant],
                yerr=whiskers if speedup.has_range else None,
                error_kw={"linewidth": 0.8},
            )
    panel.axhline(1.0, color="black", linewidth=0.6)
    panel.set_xticks(range(len(batches)), [str(batch) for batch in batches])
    panel.set_xlabel("batch size" + (f"; missing: {', '.join(missing)}" if missing else ""))
    panel.set_ylabel("times as fast as stock")
    panel.set_title(title, fontsize=9)
