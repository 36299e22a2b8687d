"""The comparison of all networks: what is measured in which order, within which time."""

from __future__ import annotations

import pathlib
import stat
import sys

import pytest
from click.testing import CliRunner

from python.benchmarks import compare_networks
from python.benchmarks.compare_networks import FIRST, ROUNDS, main, share_of
from python.benchmarks.networks import NETWORKS
from tf_interop.benchmark.result import Precision


@pytest.fixture(name="commands")
def fixture_commands(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Stands in for Python: writes down each command, and the file that it was to write."""
    log = tmp_path / "said.txt"
    program = tmp_path / "python"
    program.write_text(
        f"#!{sys.executable}\n"
        "import pathlib, sys\n"
        "arguments = sys.argv[3:]\n"
        f"with pathlib.Path({str(log)!r}).open('a') as file:\n"
        "    print(*arguments, file=file)\n"
        "print('a table')\n"
        "pathlib.Path(arguments[arguments.index('-o') + 1]).touch()\n"
        # A variant without values is no failure of the comparison.
        "sys.exit(3 if arguments[0] == 'benchmark' else 0)\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(compare_networks.sys, "executable", str(program))
    return log


def test_profiles_then_benchmarks_each_network(
    commands: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = tmp_path / "out"
    arguments = (
        str(out), "--budget", "10m", "--network", "GoogLeNet", "--network",
        "ResNet-50", "--batch", "4,8", "--image-size", "64", "--backend", "host",
    )  # fmt: skip
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    lines = commands.read_text().splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["profile", "python.benchmarks.networks:googlenet"],
        ["benchmark", "python.benchmarks.networks:googlenet"],
        ["profile", "ResNet50"],
        ["benchmark", "ResNet50"],
    ] * 2
    profile, benchmark = lines[:2]
    for line in (profile, benchmark):
        assert "--batch 4,8 --inference --image-size 64" in line
    assert "--backend host" in profile
    assert f"--profile {out}/profile.json --precision tf32 --repetitions 2" in benchmark
    assert f"-o {out}/results.json --csv {out}/results.csv" in benchmark
    assert "--no-inference --training" in lines[4]
    assert (out / "tables.txt").read_text() == "a table\n"


def test_ends_when_time_is_over(
    commands: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter(range(0, 100_000, 20))
    monkeypatch.setattr(compare_networks.time, "monotonic", lambda: float(next(now)))
    result = CliRunner().invoke(main, (str(tmp_path / "out"), "--budget", "100s"))
    assert "time is over" in result.output
    # What is of most value came first.
    lines = commands.read_text().splitlines()
    assert lines[0].startswith("profile python.benchmarks.networks:googlenet")
    assert len(lines) == 2


def test_rounds_hold_what_has_to_be_compared() -> None:
    assert FIRST == ("GoogLeNet", "Inception-v3", "ResNet-50")
    for steps in (compare_networks.INFERENCE, compare_networks.TRAINING):
        for precision in (Precision.TF32, Precision.FLOAT16):
            for name in FIRST:
                assert {1, 8, 32, 128} <= {
                    size
                    for each in ROUNDS
                    if (each.steps, each.precision) == (steps, precision) and name in each.networks
                    for size in each.batches
                }
    measured = {name for each in ROUNDS for name in each.networks}
    assert measured == set(NETWORKS)


def test_shares_of_time_add_up_and_the_first_is_the_largest() -> None:
    left, shares = 100.0, []
    for units_left in range(4, 0, -1):
        shares.append(share_of(left, units_left))
        left -= shares[-1]
    assert left == pytest.approx(0.0)
    assert shares == sorted(shares, reverse=True)
