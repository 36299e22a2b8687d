"""How a benchmark's process may end."""

from __future__ import annotations

import pathlib
import time

import pytest
from benchmark_values import CASE, OPTIONS

import tf_interop
from tf_interop.benchmark import child
from tf_interop.benchmark.child import Outcome, Request, run_child
from tf_interop.benchmark.result import FailureKind, MeasuringOptions, Variant
from tf_interop.measure.core_speed import CoreSpeed

REQUEST = Request(CASE, Variant.STOCK, options=OPTIONS)


@pytest.fixture(name="module")
def fixture_module(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "tf_interop.py").write_text("raise SystemExit('the sources')")
    monkeypatch.chdir(tmp_path / "sources")
    return tmp_path / "benchmark_program.py"


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", ["SIGKILL", "memory"]),
        ("import os, sys; print('F0000 fatal', file=sys.stderr)\nsys.exit(7)", ["code 7", "fatal"]),
        ("print('I0000 00:00:17.9 starts')", ["exit code 0"]),
        ("import sys; print('│ starts │'); sys.exit('the cause')", ["exit code 1: the cause"]),
        # This package instead of sources in the working directory.
        ("import sys, tf_interop; sys.exit(tf_interop.__file__)", [str(tf_interop.__file__)]),
    ],
)
def test_a_crash_is_a_failure_with_its_last_words(
    module: pathlib.Path, program: str, expected: list[str]
) -> None:
    module.write_text(program)
    failure = run_child(REQUEST, 60.0, module=module.stem).failure
    assert failure.kind is FailureKind.CRASHED
    assert all(words in failure.message for words in expected), failure.message
    assert "starts" not in failure.message


def test_kills_a_process_that_takes_too_long(module: pathlib.Path, tmp_path: pathlib.Path) -> None:
    # Its children are killed too; they would go on using the device.
    grandchild = f"import time, pathlib; time.sleep(3); pathlib.Path('{tmp_path}/alive').touch()"
    module.write_text(
        "import subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', {grandchild!r}])\n"
        "time.sleep(60)\n"
    )
    begin = time.monotonic()
    failure = run_child(REQUEST, 1.0, module=module.stem).failure
    assert failure.kind is FailureKind.TIMED_OUT
    # A stopped process makes no entry.
    assert run_child(REQUEST, 60.0, module=module.stem, should_stop=lambda: True) == Outcome()
    assert time.monotonic() - begin < 30
    time.sleep(4)
    assert not (tmp_path / "alive").exists()


@pytest.mark.parametrize(
    ("speeds", "core_seconds", "step_ms", "slowed"),
    [
        # Two steps run between two probes, or one slow step.
        ([True] * 4, {}, [60.0] * 6, 0.0),
        ([True, True, False, False, True, True, True], {}, [60.0] * 6, 0.0),
        ([], None, [60.0] * 6, 0.0),
        # It does not wait forever.
        ([True, True, *[False] * 100], {}, [60.0] * 4 + [100.0] * 16, 0.9),
    ],
)
def test_only_steps_on_cores_at_full_speed_count(
    speeds: list[bool],
    core_seconds: dict[int, float] | None,
    step_ms: list[float],
    slowed: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    probes = iter(speeds)
    now_ms = [60.0]  # a step takes longer while the last probe found a slow core

    def probe(_: CoreSpeed) -> bool:
        is_full = next(probes)
        now_ms[0] = 60.0 if is_full else 100.0
        return is_full

    monkeypatch.setattr(CoreSpeed, "is_full", probe)
    monkeypatch.setattr(child, "_time_ms", lambda _: now_ms[0])
    options = MeasuringOptions(steps=3, seconds=0.36)
    assert child._time_steps(lambda: None, options, core_seconds) == (step_ms, slowed)
