"""Writes a result file from the lines of tests/cc/cudnn_sweep_test.cc.

scripts/sweep_cudnn.sh calls it with the result file and the folders of scripts/get_cudnn.sh, the
newest cuDNN last. Each has the lines of its version in sweep.tsv.
"""

from __future__ import annotations

import collections
import pathlib
import statistics
import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from python.benchmarks.result_file import write_result

_SAYS = """
**Nothing was executed**: cuDNN made execution plans from the saved properties of an H200, an A100
and a T4 (tests/cc/devices/), without a GPU. So there are workspaces, but no times.

The first table counts every kind, layout, rank, epilogue and group count of TensorFlow's ops on
twelve geometries, in batches of 4. The engine is cuDNN's first proposal with a plan and at most
8 GiB of workspace; the largest workspace is of these. Where no engine accepts the convolution as it
is, its epilogue is split off, or it is transposed to NCHW. Proposals are counted for convolutions
without an epilogue.

The second table is of the newest cuDNN. It has single convolutions in batches of 32, in NHWC and
float with TF32 unless it says otherwise. A setting is an engine with values of its knobs.
Workspaces include the transformed filter. Algorithms of the legacy API (FFT, WINOGRAD and others)
are missing, because cuDNN does not tell their workspaces without a GPU. So are residual additions,
which stages do not fuse.
"""


class Convolution(NamedTuple):
    """A convolution of the sweep, as the test writes it."""

    gpu: str
    precision: str
    rank: str
    epilogue: str
    formulation: str  # empty without a plan
    proposals: str
    workspace_bytes: str
    refusal: str


class Algorithm(NamedTuple):
    """An engine with its knobs for one of the single convolutions, as the test writes it."""

    gpu: str
    convolution: str
    sizes: str
    origin: str  # proposed, or listed
    name: str
    workspace_bytes: str  # empty without a plan
    refusal: str


def read_lines(folder: pathlib.Path) -> tuple[list[Convolution], list[Algorithm]]:
    """Reads what the test wrote with one version of cuDNN."""
    convolutions, algorithms = [], []
    for line in (folder / "sweep.tsv").read_text().splitlines():
        what, gpu, *values = line.split("\t")
        if what == "convolution":
            convolutions.append(Convolution(gpu.upper(), *values))
        else:
            algorithms.append(Algorithm(gpu.upper(), *values))
    return convolutions, algorithms


def cudnn_version(folder: pathlib.Path) -> str:
    """The version that scripts/get_cudnn.sh installed into a folder."""
    return (folder / "installed").read_text().split()[0].partition("==")[2]


def coverage_rows(version: str, convolutions: Iterable[Convolution]) -> Iterator[dict[str, Any]]:
    """A row for each GPU and precision."""
    for (gpu, precision), all_of in _grouped(convolutions, "gpu", "precision").items():
        planned = [each for each in all_of if each.formulation]
        refusals = collections.Counter(each.refusal for each in all_of if not each.formulation)
        proposals = [int(each.proposals) for each in planned if each.epilogue == "none"]
        yield {
            "cuDNN": version,
            "GPU": gpu,
            "precision": precision,
            "convolutions": len(all_of),
            "with_an_engine": len(planned),
            "split_or_transposed": sum(each.formulation != "plain" for each in planned),
            "refused": ", ".join(f"{count}: {why}" for why, count in refusals.items()) or None,
            "fewest_proposals": min(proposals, default=None),
            "median": statistics.median(proposals) if proposals else None,
            "most": max(proposals, default=None),
            "largest_workspace, MB": _megabytes(
                max((int(each.workspace_bytes) for each in planned), default=None)
            ),
        }


def single_rows(algorithms: Iterable[Algorithm]) -> Iterator[dict[str, Any]]:
    """A row for each of the single convolutions and GPU."""
    for (convolution, gpu), listed in _grouped(algorithms, "convolution", "gpu").items():
        planned = [each for each in listed if each.workspace_bytes]
        workspaces = [int(each.workspace_bytes) for each in planned]
        yield {
            "convolution": convolution,
            "GPU": gpu,
            "engines": len({each.name.partition("_")[0] for each in planned}),
            "settings": len(planned),
            "proposed": sum(each.origin == "proposed" for each in planned),
            "refused": len(listed) - len(planned),
            "first_proposal, MB": _megabytes(workspaces[0]),
            "least_workspace, MB": _megabytes(min(workspaces)),
            "largest_workspace, MB": _megabytes(max(workspaces)),
        }


def _grouped(rows: Iterable[Any], *names: str) -> dict[tuple[str, ...], list[Any]]:
    groups: dict[tuple[str, ...], list[Any]] = {}
    for row in rows:
        groups.setdefault(tuple(getattr(row, name) for name in names), []).append(row)
    return groups


def _megabytes(count: int | None) -> float | None:
    return None if count is None else count / 1e6


def main() -> None:
    """Reads the lines and writes the file."""
    out, *folders = map(pathlib.Path, sys.argv[1:])
    coverage: list[dict[str, Any]] = []
    for folder in folders:
        convolutions, algorithms = read_lines(folder)
        coverage += coverage_rows(cudnn_version(folder), convolutions)
    write_result(
        out,
        "Engines of cuDNN, without a GPU",
        _SAYS,
        [*coverage, *single_rows(algorithms)],
        command="scripts/sweep_cudnn.sh",
        made_with=(),
        cudnn=" and ".join(map(cudnn_version, folders)),
    )


if __name__ == "__main__":
    main()
