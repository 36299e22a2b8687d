"""Values of Nsight Compute, read from the CSV that `ncu --csv` prints, for a profile's kernels.

    ncu --csv --page raw --set full …      all three values
    ncu --csv …                            ALU and DRAM use, from the section of the speed of light

A row of a profile is one kernel of one algorithm, and a line of the CSV one launch. They are joined
by the function's name, the grid and the block. The CSV does not say which convolution a launch
belongs to: where two run the same kernel with the same grid, both get the median of all launches.
"""

from __future__ import annotations

import collections
import csv
import dataclasses
import pathlib
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tf_interop.errors import ProfileError
from tf_interop.profile.entries import KernelMeasurement
from tf_interop.profile.types import Profile
from tf_interop.versioned_file import PathLike

Dimensions = tuple[int, int, int]


class LaunchKey(NamedTuple):
    """What a kernel of a profile and a launch of the CSV are joined by.

    Attributes:
        function: the function's name without namespaces, template arguments and parameters.
        grid: blocks in x, y and z.
        block: threads in x, y and z.
    """

    function: str
    grid: Dimensions
    block: Dimensions


@dataclasses.dataclass(frozen=True, slots=True)
class NsightValues:
    """What the CSV says of one kernel: the median of its launches. None where it says nothing.

    Attributes:
        alu_utilization: use of the busiest arithmetic pipe, relative to its peak; where the CSV has
            no pipes, the SM's compute throughput.
        dram_utilization: DRAM throughput relative to its peak.
        memory_stall: warps that wait for memory, as a share of all that are stalled.
    """

    alu_utilization: float | None
    dram_utilization: float | None
    memory_stall: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class NsightImport:
    """A profile with the values of a CSV.

    Attributes:
        profile: the profile; a value that the CSV lacks is what it was.
        matched: launches that kernels of the profile were found for.
        not_in_profile: launches that the profile has no kernel for.
        not_in_csv: kernels of the profile that were not launched under Nsight Compute.
    """

    profile: Profile
    matched: tuple[LaunchKey, ...]
    not_in_profile: tuple[LaunchKey, ...]
    not_in_csv: tuple[LaunchKey, ...]


_KEY_COLUMNS = ("Kernel Name", "Grid Size", "Block Size")
_METRIC_COLUMN, _UNIT_COLUMN, _VALUE_COLUMN = "Metric Name", "Metric Unit", "Metric Value"
_DETAILS_COLUMNS = (_METRIC_COLUMN, _UNIT_COLUMN, _VALUE_COLUMN)

# Names of metrics: Nsight Compute's Profiling Guide, "Metrics Reference", and the files of its
# sections ComputeWorkloadAnalysis, SpeedOfLight and WarpStateStats. Pipes that compute; not those
# of addresses, branches and memory (adu, cbu, uniform, lsu, tex, tma).
_ARITHMETIC_PIPE = re.compile(
    r"sm__(?:inst_executed_pipe|pipe)_(?:alu|fma|fp16|fp64|shared|tensor|xu)\w*"
    r"\.avg\.pct_of_peak_sustained_active"
)
_COMPUTE_THROUGHPUT = (
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "Compute (SM) Throughput",
)
_DRAM_THROUGHPUT = (
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "DRAM Throughput",
)
_WARP_STATE = re.compile(
    r"smsp__average_warps_issue_stalled_(\w+?)(_not_issued)?_per_issue_active\.ratio"
)
# Warps in these states are not stalled: they issue, or could.
_NOT_STALLED = frozenset({"selected", "not_selected"})
# Waiting for data from global, local or texture memory, for room in its queue, or for stores to
# end: what nvprof called memory dependency and memory throttle (Nsight Compute CLI, "nvprof Metric
# Comparison").
_WAITING_FOR_MEMORY = frozenset({"long_scoreboard", "lg_throttle", "drain"})
# Without these the rest is a choice of metrics, not all stalls.
_ALWAYS_COLLECTED = frozenset({"long_scoreboard", "short_scoreboard", "wait", "barrier"})


def read_nsight_csv(path: PathLike) -> dict[LaunchKey, NsightValues]:
    """Reads the CSV of either page; what `ncu` prints around the table is passed over.

    Raises:
        ProfileError: there is no such file, or no such table in it.
    """
    try:
        lines = pathlib.Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"Expected Nsight Compute's CSV at '{path}', got: {error}.") from error
    start = next((number for number, line in enumerate(lines) if line.startswith('"ID",')), None)
    if start is None:
        raise ProfileError(
            f"Expected the table of `ncu --csv` in '{path}', got no line that begins with \"ID\". "
            "Run ncu with --csv, and --page raw for all values."
        )
    # Messages come after the table too.
    table = csv.DictReader((line for line in lines[start:] if line.startswith('"')), restval="")
    columns = table.fieldnames or ()
    is_details = _METRIC_COLUMN in columns
    expected = (*_KEY_COLUMNS, *(_DETAILS_COLUMNS if is_details else ()))
    missing = [name for name in expected if name not in columns]
    if missing:
        raise ProfileError(
            f"Expected the columns {', '.join(expected)} in '{path}', got none named "
            f"{', '.join(missing)}. Use Nsight Compute 2021.1 or later."
        )
    launches = _launches_of_details(table) if is_details else _launches_of_raw(table)
    measured: dict[LaunchKey, list[NsightValues]] = collections.defaultdict(list)
    try:
        for key, metrics in launches:
            measured[key].append(_values_of(metrics))
    except (ValueError, csv.Error) as error:
        raise ProfileError(
            f"{error}, in line {start + table.line_num} of '{path}'. The file is damaged or of a "
            "kind that is not known here."
        ) from error
    return {key: _median_of(values) for key, values in measured.items()}


def add_nsight_values(profile: Profile, measured: Mapping[LaunchKey, NsightValues]) -> NsightImport:
    """Fills in the values of a profile's kernels.

    Args:
        profile: kernels of its algorithms are looked up by function, grid and block.
        measured: what `read_nsight_csv` gave.
    """
    in_profile: dict[LaunchKey, None] = {}

    def fill_in(kernel: KernelMeasurement) -> KernelMeasurement:
        key = LaunchKey(function_name(kernel.name), kernel.grid, kernel.block)
        in_profile[key] = None
        found = measured.get(key)
        if found is None:
            return kernel
        known = {
            field.name: value
            for field in dataclasses.fields(found)
            if (value := getattr(found, field.name)) is not None
        }
        return dataclasses.replace(kernel, **known)

    algorithms = tuple(
        dataclasses.replace(each, kernels=tuple(fill_in(kernel) for kernel in each.kernels))
        for each in profile.algorithms
    )
    return NsightImport(
        profile=dataclasses.replace(profile, algorithms=algorithms),
        matched=tuple(key for key in measured if key in in_profile),
        not_in_profile=tuple(key for key in measured if key not in in_profile),
        not_in_csv=tuple(key for key in in_profile if key not in measured),
    )


def function_name(name: str) -> str:
    """The function's own name, out of a mangled, a demangled or a plain name of a kernel.

    CUPTI gives the linker's name, Nsight Compute by default the demangled one.
    """
    if name.startswith("_Z"):
        return _unmangled(name)
    # "void ns::f<int, (bool)1>(float *)": up to the first bracket, then the last word.
    head = re.split(r"[<(]", name, maxsplit=1)[0]
    return re.split(r"[\s:*&]+", head.strip())[-1]


def _unmangled(name: str) -> str:
    """The last of the identifiers, each with its length in front, that begin a mangled name."""
    # Itanium C++ ABI, "Mangling": _Z <name>, or _ZN <name>... for one in namespaces.
    position = 3 if name.startswith("_ZN") else 2
    found = name
    while match := re.compile(r"[1-9][0-9]*").match(name, position):
        length = int(match.group())
        found = name[match.end() : match.end() + length]
        position = match.end() + length
        if not name.startswith("_ZN"):
            break
    return found


_Launch = tuple[LaunchKey, Mapping[str, str]]


def _launches_of_raw(table: csv.DictReader[str]) -> Iterator[_Launch]:
    """One row for each launch; a row of units, without an ID, comes first."""
    for row in table:
        if row["ID"]:
            yield _key_of(row), row


def _launches_of_details(table: csv.DictReader[str]) -> Iterator[_Launch]:
    """One row for each metric of each launch, those of one launch one after another."""
    key: LaunchKey | None = None
    current: tuple[str, str] | None = None
    metrics: dict[str, str] = {}
    for row in table:
        launch = row.get("Process ID", ""), row["ID"]
        if launch != current:
            if key is not None:
                yield key, metrics
            key, current, metrics = _key_of(row), launch, {}
        # Rules come as rows without a metric, or with one of the same name in another unit.
        unit = row[_UNIT_COLUMN]
        if row[_METRIC_COLUMN] and (unit == "%" or row[_METRIC_COLUMN].startswith("smsp__")):
            metrics[row[_METRIC_COLUMN]] = row[_VALUE_COLUMN]
    if key is not None:
        yield key, metrics


def _key_of(row: Mapping[str, str]) -> LaunchKey:
    if None in row:  # where DictReader puts what has no column
        raise ValueError(f"Expected {len(row) - 1} fields, got more")
    return LaunchKey(
        function_name(row["Kernel Name"]),
        _dimensions(row["Grid Size"]),
        _dimensions(row["Block Size"]),
    )


def _dimensions(text: str) -> Dimensions:
    numbers = [int(number.replace(",", "")) for number in re.findall(r"\d+", text)]
    if len(numbers) != 3:
        raise ValueError(f"Expected three sizes such as (256, 1, 1), got {text!r}")
    return numbers[0], numbers[1], numbers[2]


def _values_of(metrics: Mapping[str, str]) -> NsightValues:
    pipes = [
        value
        for name, text in metrics.items()
        if _ARITHMETIC_PIPE.fullmatch(name) and (value := _number(text)) is not None
    ]
    alu = max(pipes) if pipes else _first_number(metrics, _COMPUTE_THROUGHPUT)
    dram = _first_number(metrics, _DRAM_THROUGHPUT)
    return NsightValues(_share(alu), _share(dram), _memory_stall(metrics))


def _memory_stall(metrics: Mapping[str, str]) -> float | None:
    stalled = {
        match.group(1): value
        for name, text in metrics.items()
        if (match := _WARP_STATE.fullmatch(name))
        and not match.group(2)
        and match.group(1) not in _NOT_STALLED
        and (value := _number(text)) is not None
    }
    total = sum(stalled.values())
    if not stalled.keys() >= _ALWAYS_COLLECTED or not total:
        return None
    return sum(value for state, value in stalled.items() if state in _WAITING_FOR_MEMORY) / total


def _first_number(metrics: Mapping[str, str], names: Iterable[str]) -> float | None:
    numbers = (_number(metrics[name]) for name in names if name in metrics)
    return next((number for number in numbers if number is not None), None)


def _number(text: str) -> float | None:
    """A number as `ncu` prints it, with commas between thousands; None for one it did not get."""
    if text in ("", "n/a", "nan"):
        return None
    try:
        return float(text.replace(",", ""))
    except ValueError:
        raise ValueError(f"Expected a number, got {text!r}") from None


def _share(percent: float | None) -> float | None:
    # Counters of several passes do not add up exactly: 100.2 % is seen.
    return None if percent is None else min(max(percent / 100, 0.0), 1.0)


def _median_of(launches: Sequence[NsightValues]) -> NsightValues:
    def median(get: Callable[[NsightValues], float | None]) -> float | None:
        values = [value for each in launches if (value := get(each)) is not None]
        return statistics.median(values) if values else None

    return NsightValues(
        median(lambda each: each.alu_utilization),
        median(lambda each: each.dram_utilization),
        median(lambda each: each.memory_stall),
    )
