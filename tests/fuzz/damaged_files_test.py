"""Damaged files that a fuzzer found, or that it seldom finds."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import pytest
from profile_values import GPU

from tf_interop.errors import TfInteropError
from tf_interop.planning.file import load_plan
from tf_interop.planning.problem_file import load_problem
from tf_interop.profile.file import load_profile, open_profile
from tf_interop.profile.nsight_compute import read_nsight_csv
from tf_interop.profile.worklist_file import load_configurations

COLUMNS = ("ID", "Kernel Name", "Block Size", "Grid Size", "Metric Name", "Metric Unit")


def go_on_with_profile(path: pathlib.Path) -> None:
    with open_profile(path, GPU):
        pass


@pytest.mark.parametrize(
    "load", [load_plan, load_problem, load_profile, load_configurations, go_on_with_profile]
)
@pytest.mark.parametrize("opening", ["[", '{"format":'])
def test_refuses_what_is_nested_beyond_pythons_stack(
    load: Callable[[pathlib.Path], object], opening: str, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "file"
    path.write_text(opening * 100_000 + "\n")
    with pytest.raises(TfInteropError, match=str(path)):
        load(path)


def write_csv(path: pathlib.Path, *rows: tuple[str, ...]) -> pathlib.Path:
    path.write_text("".join(",".join(f'"{field}"' for field in row) + "\n" for row in rows))
    return path


def test_refuses_a_table_of_details_without_values(tmp_path: pathlib.Path) -> None:
    path = write_csv(tmp_path / "ncu.csv", COLUMNS)
    with pytest.raises(TfInteropError, match="none named Metric Value"):
        read_nsight_csv(path)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (("0", "gemm"), r"Expected three sizes such as \(256, 1, 1\), got ''"),
        (("0", *["(1, 1, 1)"] * 9), "Expected 7 fields, got more"),
    ],
)
def test_refuses_rows_with_fewer_or_more_fields_than_columns(
    row: tuple[str, ...], reason: str, tmp_path: pathlib.Path
) -> None:
    path = write_csv(tmp_path / "ncu.csv", (*COLUMNS, "Metric Value"), row)
    with pytest.raises(TfInteropError, match=reason):
        read_nsight_csv(path)
