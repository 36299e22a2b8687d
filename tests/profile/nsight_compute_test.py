"""Nsight Compute's CSV. The samples are written by hand, with the columns and names of metrics that
its documentation and published outputs show; none was printed by a real run.
"""

from __future__ import annotations

import dataclasses
import pathlib

import pytest
from profile_values import GPU, KERNEL, LARGE, make_algorithm, make_profile

from tf_interop.errors import ProfileError
from tf_interop.profile.file import save_profile
from tf_interop.profile.nsight_compute import (
    LaunchKey,
    NsightValues,
    add_nsight_values,
    function_name,
    read_nsight_csv,
)

STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
RAW_COLUMNS = [
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__time_duration.sum",
    "launch__registers_per_thread",
    "sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active",
    "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",
    "sm__inst_executed_pipe_lsu.avg.pct_of_peak_sustained_active",
    "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    STALL.format("barrier"),
    STALL.format("drain"),
    STALL.format("lg_throttle"),
    STALL.format("long_scoreboard"),
    STALL.format("long_scoreboard_not_issued"),
    STALL.format("not_selected"),
    STALL.format("selected"),
    STALL.format("short_scoreboard"),
    STALL.format("wait"),
]
RAW_UNITS = ["%", "us", "register/thread", *["%"] * 5, *["inst"] * 9]
LAUNCH_COLUMNS = [
    "ID",
    "Process ID",
    "Process Name",
    "Host Name",
    "Kernel Name",
    "Context",
    "Stream",
    "Block Size",
    "Grid Size",
    "Device",
    "CC",
]
BEFORE = """==PROF== Connected to process 4711 (/usr/bin/python3)
==PROF== Profiling "implicit_gemm" - 0: 0%....50%....100% - 40 passes
==PROF== Disconnected from process 4711
"""


def _line(*values: object) -> str:
    return ",".join(f'"{value}"' for value in values) + "\n"


def _launch(number: int, kernel: str, block: str, grid: str) -> list[object]:
    return [number, 4711, "python3", "127.0.0.1", kernel, 1, 7, block, grid, 0, "9.0"]


# Of 3 + 0.5 + 0.25 + 4 + 0.75 + 1.5 = 10 stalled warps 4.75 wait for memory.
RAW_VALUES = [
    "12.5",
    "1,205.31",
    "120",
    "35.00",
    "20.00",
    "99.00",
    "70.25",
    "80.00",
    "3.0",
    "0.5",
    "0.25",
    "4.0",
    "3.9",
    "2.0",
    "1.0",
    "0.75",
    "1.5",
]


def _raw(*launches: tuple[str, str, str, list[str]], before: str = BEFORE) -> str:
    lines = [_line(*LAUNCH_COLUMNS, *RAW_COLUMNS), _line(*[""] * len(LAUNCH_COLUMNS), *RAW_UNITS)]
    for number, (kernel, block, grid, values) in enumerate(launches):
        lines.append(_line(*_launch(number, kernel, block, grid), *values))
    return before + "".join(lines)


DETAILS_COLUMNS = [
    *LAUNCH_COLUMNS,
    "Section Name",
    "Metric Name",
    "Metric Unit",
    "Metric Value",
    "Rule Name",
    "Rule Type",
    "Rule Description",
]


def _details(number: int, kernel: str, compute: str, dram: str) -> str:
    launch = _launch(number, kernel, "(256, 1, 1)", "(98, 1, 1)")
    speed, none = "GPU Speed Of Light Throughput", ("", "", "")
    return "".join(
        [
            _line(*launch, speed, "DRAM Frequency", "Ghz", "2.62", *none),
            _line(*launch, speed, "Duration", "us", "1,205.31", *none),
            _line(*launch, speed, "DRAM Throughput", "%", dram, *none),
            _line(*launch, speed, "Compute (SM) Throughput", "%", compute, *none),
            _line(*launch, "", "", "", "", "SOLBottleneck", "WRN", "Low use of, say, DRAM."),
            _line(*launch, speed, "Compute (SM) Throughput", "inst", "123,456", *none),
        ]
    )


KEY = LaunchKey("implicit_gemm", (98, 1, 1), (256, 1, 1))


@pytest.fixture(name="path")
def fixture_path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "ncu.csv"


def test_reads_the_raw_page(path: pathlib.Path) -> None:
    path.write_text(_raw(("implicit_gemm", "(256, 1, 1)", "(98, 1, 1)", RAW_VALUES)))
    assert read_nsight_csv(path) == {KEY: NsightValues(0.7025, 0.125, pytest.approx(0.475))}


def test_reads_the_details_page(path: pathlib.Path) -> None:
    header = _line(*DETAILS_COLUMNS)
    path.write_text(BEFORE + header + _details(0, "implicit_gemm", "61.5", "22.0"))
    assert read_nsight_csv(path) == {KEY: NsightValues(0.615, 0.22, None)}


def test_passes_over_what_is_printed_around_the_table(path: pathlib.Path) -> None:
    table = _raw(("implicit_gemm", "(256, 1, 1)", "(98, 1, 1)", RAW_VALUES), before="")
    path.write_text("training, epoch 1\n" + BEFORE + table + "==WARNING== No more kernels\n")
    assert list(read_nsight_csv(path)) == [KEY]


def test_takes_the_median_of_several_launches(path: pathlib.Path) -> None:
    blocks = [_details(n, "implicit_gemm", c, d) for n, c, d in _LAUNCHES]
    path.write_text(_line(*DETAILS_COLUMNS) + "".join(blocks))
    assert read_nsight_csv(path) == {KEY: NsightValues(0.3, pytest.approx(0.15), None)}


_LAUNCHES = [(0, "10.0", "n/a"), (1, "90.0", "10.0"), (2, "30.0", "20.0")]


def test_counts_no_pipe_that_does_not_compute(path: pathlib.Path) -> None:
    # Without the tensor cores ALU is the busiest; LSU, at 99 %, is for memory.
    values = [*RAW_VALUES[:6], "n/a", *RAW_VALUES[7:]]
    path.write_text(_raw(("implicit_gemm", "(256, 1, 1)", "(98, 1, 1)", values)))
    assert read_nsight_csv(path)[KEY].alu_utilization == 0.35


def test_a_choice_of_stall_reasons_gives_no_share(path: pathlib.Path) -> None:
    values = [*RAW_VALUES[:-1], "n/a"]
    path.write_text(_raw(("implicit_gemm", "(256, 1, 1)", "(98, 1, 1)", values)))
    assert read_nsight_csv(path)[KEY].memory_stall is None


def test_a_share_is_at_most_one(path: pathlib.Path) -> None:
    path.write_text(_line(*DETAILS_COLUMNS) + _details(0, "implicit_gemm", "100.31", "0"))
    assert read_nsight_csv(path)[KEY].alu_utilization == 1.0


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "Expected the table of `ncu --csv`"),
        ("==ERROR== ERR_NVGPUCTRPERM\n", "Expected the table of `ncu --csv`"),
        (_line("ID", "Kernel Name", "Context"), "got none named Grid Size, Block Size"),
        (
            _raw(("f", "(256, 1, 1)", "(98, 1, 1)", ["fast", *RAW_VALUES[1:]])),
            "Expected a number, got 'fast', in line 6",
        ),
        (_raw(("f", "256", "(98, 1, 1)", RAW_VALUES)), r"got '256', in line 6"),
    ],
)
def test_refuses_what_is_no_such_table(path: pathlib.Path, content: str, reason: str) -> None:
    path.write_text(content)
    with pytest.raises(ProfileError, match=reason):
        read_nsight_csv(path)


def test_refuses_a_missing_file(path: pathlib.Path) -> None:
    with pytest.raises(ProfileError, match="No such file"):
        read_nsight_csv(path)


@pytest.mark.parametrize(
    "name",
    [
        "scale",
        "scale(float *, int)",
        "void scale<float, (bool)1>(T1 *, T1 const &)",
        "void ns::inner::scale<ns::Tile<(int)4>>(ns::Params)",
        "float *scale(int)",
        "_Z5scalePfi",
        "_Z5scaleIfLb1EEvPT_",
        "_ZN2ns5inner5scaleINS_4TileEEEvPT_",
    ],
)
def test_knows_a_function_by_any_of_its_names(name: str) -> None:
    assert function_name(name) == "scale"


VALUES = NsightValues(0.7, 0.2, 0.4)


def test_fills_in_kernels_by_function_grid_and_block() -> None:
    mangled = dataclasses.replace(KERNEL, name="_ZN5cudnn13implicit_gemmIfEEvPT_")
    other_grid = dataclasses.replace(KERNEL, grid=(99, 1, 1))
    profile = make_profile(
        make_algorithm(kernels=(mangled,)),
        make_algorithm(LARGE, kernels=(other_grid,)),
        make_algorithm(algorithm="DIRECT", kernels=()),
    )
    elsewhere = LaunchKey("elementwise", (1, 1, 1), (32, 1, 1))
    result = add_nsight_values(profile, {KEY: VALUES, elsewhere: VALUES})
    filled = dataclasses.replace(
        mangled, alu_utilization=0.7, dram_utilization=0.2, memory_stall=0.4
    )
    assert [each.kernels for each in result.profile.algorithms] == [(filled,), (other_grid,), ()]
    assert result.matched == (KEY,)
    assert result.not_in_profile == (elsewhere,)
    assert result.not_in_csv == (LaunchKey("implicit_gemm", (99, 1, 1), (256, 1, 1)),)


def test_keeps_values_that_the_csv_lacks() -> None:
    known = dataclasses.replace(KERNEL, alu_utilization=0.1, memory_stall=0.9)
    profile = make_profile(make_algorithm(kernels=(known,)))
    result = add_nsight_values(profile, {KEY: NsightValues(0.5, None, None)})
    (kernel,) = result.profile.algorithms[0].kernels
    assert kernel == dataclasses.replace(known, alu_utilization=0.5)


def test_a_profile_with_values_can_be_saved(path: pathlib.Path) -> None:
    path.write_text(_raw(("implicit_gemm", "(256, 1, 1)", "(98, 1, 1)", RAW_VALUES)))
    profile = make_profile(make_algorithm(), device=GPU)
    filled = add_nsight_values(profile, read_nsight_csv(path)).profile
    assert filled.algorithms[0].kernels[0].dram_utilization == 0.125
    save_profile(filled, path.with_suffix(".json"))
