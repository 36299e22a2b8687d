"""How a benchmark's process may end."""

from __future__ import annotations

import signal

import pytest
from benchmark_values import CASE, OPTIONS

from tf_interop.benchmark import child
from tf_interop.benchmark.child import Outcome, Request, run_child
from tf_interop.benchmark.result import Failure, FailureKind, MeasuringOptions, Variant
from tf_interop.child_process import Ended
from tf_interop.measure.core_speed import CoreSpeed

REQUEST = Request(CASE, Variant.STOCK, options=OPTIONS)


@pytest.mark.parametrize(
    ("ended", "kind", "message"),
    [
        (Ended(-signal.SIGKILL, b"", ""), FailureKind.CRASHED,
         "the process was ended by SIGKILL, as the system does when it runs out of memory"),
        (Ended(7, b"", "F0000 fatal\n"), FailureKind.CRASHED,
         "the process ended with exit code 7: F0000 fatal"),
        (Ended(1, b"", "│ box │\nI0000 00:00:17.9 log\none\n\nthe cause"), FailureKind.CRASHED,
         "the process ended with exit code 1: one | the cause"),
        (Ended(None, b"half an outcome", ""), FailureKind.TIMED_OUT,
         "the process took longer than 60 s"),
    ],
)  # fmt: skip
def test_a_process_without_an_outcome_is_a_failure_with_its_last_words(
    ended: Ended, kind: FailureKind, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "run_module", lambda *_, **__: ended)
    assert run_child(REQUEST, 60.0) == Outcome(failure=Failure(kind, message))


def test_a_stopped_process_makes_no_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "run_module", lambda *_, **__: Ended(None, b"", ""))
    assert run_child(REQUEST, 60.0, should_stop=lambda: True) == Outcome()


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
