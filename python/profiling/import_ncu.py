"""Adds values of Nsight Compute to the kernels of a profile: ALU use, DRAM use and stalls.

    ncu --csv --page raw --set full … > ncu.csv

    python python/profiling/import_ncu.py PROFILE.json ncu.csv

A row of the CSV is one launch. A kernel of the profile gets the median of the launches with its
function, grid and block; the CSV does not name the convolution of a launch. Values missing from the
CSV stay unchanged.
"""

from __future__ import annotations

import collections
import csv
import dataclasses
import pathlib
import re
import statistics
from collections.abc import Mapping
from typing import Any

import click

import tf_interop

PATH = click.Path(path_type=pathlib.Path)
Launch = tuple[str, tuple[int, ...], tuple[int, ...]]
"""The function's name without namespaces and arguments, the grid, and the block."""

# Names of metrics: Nsight Compute's Profiling Guide, "Metrics Reference". Only pipes that compute,
# not those for addresses, branches and memory (adu, cbu, uniform, lsu, tex, tma).
ARITHMETIC_PIPE = re.compile(
    r"sm__(?:inst_executed_pipe|pipe)_(?:alu|fma|fp16|fp64|shared|tensor|xu)\w*"
    r"\.avg\.pct_of_peak_sustained_active"
)
DRAM_THROUGHPUT = re.compile(r"(?:dram__|gpu__dram_)throughput\.avg\.pct_of_peak_sustained_elapsed")
WARP_STATE = re.compile(r"smsp__average_warps_issue_stalled_(\w+)_per_issue_active\.ratio")
# Warps in these states issue, or could.
NOT_STALLED = {"selected", "not_selected"}
# Waiting for data from global, local or texture memory, for room in its queue, or for the end of
# stores: memory dependency and memory throttle in nvprof.
WAITING_FOR_MEMORY = {"long_scoreboard", "lg_throttle", "drain"}
# Without these the CSV has only some of the stalls.
ALWAYS_COLLECTED = {"long_scoreboard", "short_scoreboard", "wait", "barrier"}


def read_launches(path: pathlib.Path) -> dict[Launch, dict[str, float]]:
    """The values of each kernel in a CSV, by field of the profile's kernels.

    Raises:
        SystemExit: it is not the raw page of `ncu --csv`.
    """
    lines = path.read_text().splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith('"ID",')), None)
    # Messages of ncu and of the program come before and after the table.
    rows = csv.DictReader(line for line in lines[start:] if line.startswith('"'))
    if start is None or not {"Kernel Name", "Grid Size", "Block Size"} <= {
        *(rows.fieldnames or ())
    }:
        raise SystemExit(f"'{path}' is not a table of ncu --csv --page raw.")
    found: dict[Launch, list[dict[str, float]]] = collections.defaultdict(list)
    for row in rows:
        if row["ID"]:  # The first row has units.
            grid, block = (
                tuple(int(size) for size in re.findall(r"\d+", row[name]))
                for name in ("Grid Size", "Block Size")
            )
            found[function_name(row["Kernel Name"]), grid, block].append(values_of(row))
    return {
        launch: {
            name: statistics.median([each[name] for each in values if name in each])
            for name in {name for each in values for name in each}
        }
        for launch, values in found.items()
    }


def values_of(row: Mapping[str, str]) -> dict[str, float]:
    """The values of one launch."""
    numbers = {
        name: float(text.replace(",", ""))
        for name, text in row.items()
        if text and re.fullmatch(r"[\d.,]+", text)
    }
    pipes = [number for name, number in numbers.items() if ARITHMETIC_PIPE.fullmatch(name)]
    dram = [number for name, number in numbers.items() if DRAM_THROUGHPUT.fullmatch(name)]
    stalled = {
        match[1]: number
        for name, number in numbers.items()
        if (match := WARP_STATE.fullmatch(name)) and not match[1].endswith("_not_issued")
    }
    stalled = {state: number for state, number in stalled.items() if state not in NOT_STALLED}
    values = {}
    # Counters of several passes do not add up exactly; 100.2 % occurs.
    if pipes:
        values["alu_utilization"] = min(max(pipes) / 100, 1.0)
    if dram:
        values["dram_utilization"] = min(dram[0] / 100, 1.0)
    if stalled.keys() >= ALWAYS_COLLECTED and sum(stalled.values()):
        waiting = sum(number for state, number in stalled.items() if state in WAITING_FOR_MEMORY)
        values["memory_stall"] = waiting / sum(stalled.values())
    return values


def function_name(name: str) -> str:
    """The function's own name, from a mangled, a demangled or a plain name of a kernel.

    CUPTI reports mangled names, Nsight Compute demangled ones by default.
    """
    if not name.startswith("_Z"):
        # "void ns::f<int, (bool)1>(float *)": the last word before the first bracket.
        return re.split(r"[\s:*&]+", re.split(r"[<(]", name)[0].strip())[-1]
    # Itanium C++ ABI, "Mangling": each identifier follows its length; after _ZN there are several.
    rest, found = name.removeprefix("_ZN").removeprefix("_Z"), name
    while match := re.match(r"[1-9][0-9]*", rest):
        found, rest = (rest[match.end() :][: int(match[0])], rest[match.end() + int(match[0]) :])
        if not name.startswith("_ZN"):
            break
    return found


@click.command(help=__doc__)
@click.argument("path", metavar="PROFILE.json", type=PATH)
@click.argument("table", metavar="CSV", type=PATH)
@click.option("-o", "--output", type=PATH, help="The filled profile. [default: PROFILE.json]")
def main(path: pathlib.Path, table: pathlib.Path, output: pathlib.Path | None) -> None:
    """Fills the profile."""
    profile = tf_interop.load_profile(path)
    launches = read_launches(table)
    missing, matched = set(), set()

    def filled(kernel: Any) -> Any:
        launch = function_name(kernel.name), tuple(kernel.grid), tuple(kernel.block)
        (matched if launch in launches else missing).add(launch)
        return dataclasses.replace(kernel, **launches.get(launch, {}))

    algorithms = tuple(
        dataclasses.replace(each, kernels=tuple(map(filled, each.kernels)))
        for each in profile.algorithms
    )
    if not matched:
        raise SystemExit(f"None of {len(launches)} launches is a kernel of the profile.")
    profile = dataclasses.replace(profile, algorithms=algorithms)
    tf_interop.save_profile(profile, output or path)
    print(
        f"Filled {len(matched)} kernels of the profile; {len(missing)} have no launch. "
        f"{len(launches.keys() - matched)} launches are of other kernels."
    )


if __name__ == "__main__":
    main()
