"""Nsight Compute's CSV. The samples are handwritten, with columns and metrics from its
documentation and from published outputs; no real run printed them.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib

import pytest
from profile_values import KERNEL, LARGE, make_algorithm, make_profile

from python.profiling.import_ncu import function_name, main, read_launches
from tf_interop.profile.file import load_profile, save_profile

STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
# 4.75 of the 3 + 0.5 + 0.25 + 4 + 0.75 + 1.5 = 10 stalled warps wait for memory.
METRICS = {
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "12.5",
    "gpu__time_duration.sum": "1,205.31",
    "sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active": "35.00",
    "sm__inst_executed_pipe_lsu.avg.pct_of_peak_sustained_active": "99.00",
    "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active": "70.25",
    **{
        STALL.format(state): value
        for state, value in {
            "barrier": "3.0", "drain": "0.5", "lg_throttle": "0.25", "long_scoreboard": "4.0",
            "long_scoreboard_not_issued": "3.9", "not_selected": "2.0", "selected": "1.0",
            "short_scoreboard": "0.75", "wait": "1.5",
        }.items()
    },
}  # fmt: skip
LAUNCH = ("implicit_gemm", KERNEL.grid, KERNEL.block)


def write_csv(path: pathlib.Path, *launches: dict[str, str], name: str = KERNEL.name) -> None:
    key = {"Kernel Name": name, "Block Size": str(KERNEL.block), "Grid Size": str(KERNEL.grid)}
    columns = ["ID", *key, *METRICS]
    rows = [columns, ["", *[""] * len(key), *["%"] * len(METRICS)]]
    rows += [[str(number), *key.values(), *each.values()] for number, each in enumerate(launches)]
    lines = [",".join(f'"{cell}"' for cell in row) for row in rows]
    path.write_text("\n".join(["training", "==PROF== Connected", *lines, "==WARNING== done"]))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"alu_utilization": 0.7025, "dram_utilization": 0.125, "memory_stall": 0.475}),
        # Without the tensor cores ALU is the busiest; LSU, at 99 %, does not compute.
        ({"tensor_op": "n/a"}, {"alu_utilization": 0.35}),
        # Some of the stall reasons give no share.
        ({"stalled_wait": "n/a"}, {"memory_stall": None}),
        ({"dram__": "100.31"}, {"dram_utilization": 1.0}),
    ],
)
def test_takes_known_metrics(
    path: pathlib.Path, changes: dict[str, str], expected: dict[str, float | None]
) -> None:
    metrics = dict(METRICS)
    for part, value in changes.items():
        metrics |= {name: value for name in METRICS if part in name}
    write_csv(path, metrics)
    [(launch, values)] = read_launches(path).items()
    assert launch == LAUNCH
    assert {name: values.get(name) for name in expected} == pytest.approx(expected)


def test_takes_the_median_of_several_launches(path: pathlib.Path) -> None:
    name = next(iter(METRICS))
    write_csv(path, *({**METRICS, name: value} for value in ("10.0", "90.0", "n/a", "30.0")))
    assert read_launches(path)[LAUNCH]["dram_utilization"] == 0.3


@pytest.mark.parametrize("content", ["==ERROR== ERR_NVGPUCTRPERM\n", '"ID","Kernel Name"\n'])
def test_refuses_other_files(path: pathlib.Path, content: str) -> None:
    path.write_text(content)
    with pytest.raises(SystemExit, match="--page raw"):
        read_launches(path)


@pytest.mark.parametrize(
    "name",
    [
        "scale",
        "void ns::inner::scale<ns::Tile<(int)4>>(ns::Params)",
        "float *scale(int)",
        "_Z5scaleIfLb1EEvPT_",
        "_ZN2ns5inner5scaleINS_4TileEEEvPT_",
    ],
)
def test_finds_a_functions_name_in_all_forms(name: str) -> None:
    assert function_name(name) == "scale"


def test_fills_kernels_by_function_grid_and_block(path: pathlib.Path) -> None:
    mangled = dataclasses.replace(KERNEL, name="_ZN5cudnn13implicit_gemmIfEEvPT_")
    other_grid = dataclasses.replace(KERNEL, grid=(99, 1, 1))
    profile = path.with_name("profile.json")
    save_profile(
        make_profile(
            make_algorithm(kernels=(mangled,)), make_algorithm(LARGE, kernels=(other_grid,))
        ),
        profile,
    )
    fill_in = functools.partial(main, [str(profile), str(path)], standalone_mode=False)
    write_csv(path, METRICS, name="elementwise")
    with pytest.raises(SystemExit, match="None of 1 launches"):
        fill_in()
    write_csv(path, METRICS)
    fill_in()
    filled, other = (each.kernels[0] for each in load_profile(profile).algorithms)
    assert filled.alu_utilization == 0.7025
    assert other == other_grid
