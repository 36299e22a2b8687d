"""The order of blocks, resuming, failures and budgets, with stand-ins for processes."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
from benchmark_values import CASE, OPTIONS, make_block
from profile_values import CPU, GPU

from tf_interop.benchmark.child import Outcome, Request
from tf_interop.benchmark.result import (
    Case,
    Failure,
    FailureKind,
    Mode,
    PlanSource,
    Precision,
    Result,
    Variant,
    load_benchmark,
    save_benchmark,
)
from tf_interop.benchmark.run import BenchmarkRun, new_benchmark
from tf_interop.errors import BenchmarkError
from tf_interop.profile.types import ProfiledDevice

HALF_CASE = dataclasses.replace(CASE, precision=Precision.FLOAT16)
CRASH = Failure(FailureKind.CRASHED, "the process was ended by SIGSEGV")
VERSIONS = {"tensorflow": "2.21.0"}
STOCK, XLA, OURS, PINNING = Variant.STOCK, Variant.XLA, Variant.OURS, Variant.PINNING


class Children:
    """Stands in for processes, and records the requests."""

    def __init__(self, outcome: Callable[[Request], Outcome | None] = lambda request: None) -> None:
        self.done: list[str] = []
        self.requests: list[Request] = []
        self._outcome = outcome

    def __call__(self, request: Request, timeout_seconds: float, **_: Any) -> Outcome:
        assert timeout_seconds == OPTIONS.timeout_seconds
        self.requests.append(request)
        outcome = self._outcome(request)
        precision = request.case.precision.value
        if request.variant is None and request.source.plan_path is not None:
            return outcome or Outcome()
        if request.variant is None:
            self.done.append(f"plan {precision}")
            if outcome is None:
                pathlib.Path(request.plan_path).write_text(f"plan {len(self.done)}")
            return outcome or Outcome()
        self.done.append(f"{precision} {request.variant.value} {request.repetition}")
        return outcome or Outcome(make_block(request.repetition, 10.0 + len(self.done)))


def run(
    path: pathlib.Path,
    children: Children,
    *variants: Variant,
    cases: tuple[Case, ...] = (CASE,),
    repetitions: int = 2,
    source: PlanSource = PlanSource(profile_path="p.json"),  # noqa: B008 (frozen)
    device: ProfiledDevice = CPU,
    **others: Any,
) -> None:
    BenchmarkRun(
        new_benchmark(device, VERSIONS, f"for {cases}", OPTIONS, path),
        path,
        cases,
        variants,
        children,
        repetitions,
        source,
        **others,
    ).run()


def results(path: pathlib.Path, case: Case = CASE) -> dict[Variant, Result]:
    return {each.variant: each for each in load_benchmark(path).by_case[case]}


def test_variants_take_turns_and_every_case_has_one_before_any_has_two(path: pathlib.Path) -> None:
    children = Children()
    run(path, children, STOCK, XLA, cases=(CASE, HALF_CASE), device=GPU)
    assert all(each.needs_gpu for each in children.requests)
    assert children.done == [
        "tf32 stock 0", "tf32 xla 0", "float16 stock 0", "float16 xla 0",
        "tf32 xla 1", "tf32 stock 1", "float16 xla 1", "float16 stock 1",
    ]  # fmt: skip
    assert list(results(path)) == [STOCK, XLA]


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ({"mode": Mode.TRAINING}, ["stock", "enabled"]),
        ({"precision": Precision.BFLOAT16}, ["stock", "frozen", "enabled", "openvino"]),
        ({}, ["stock", "frozen", "enabled", "tflite", "onnxruntime", "openvino"]),
    ],
)
def test_leaves_out_what_a_variant_cannot_run(
    path: pathlib.Path, case: dict[str, Any], expected: list[str]
) -> None:
    children, the_case = Children(), dataclasses.replace(CASE, **case)
    variants = [Variant(each) for each in ("stock", "frozen", "enabled")]
    variants += [each for each in Variant if each.is_other_runtime]
    run(path, children, *variants, cases=(the_case,), repetitions=1)
    assert [done.split()[1] for done in children.done] == expected
    assert [each.value for each in results(path, the_case)] == expected


def test_resumes_after_it_was_killed(path: pathlib.Path) -> None:
    whole = Children()
    run(path.with_name("whole.json"), whole, *Variant)

    def kill_at_fifth(_request: Request) -> None:
        if len(first.done) == 5:
            raise KeyboardInterrupt

    first = Children(kill_at_fifth)
    with pytest.raises(KeyboardInterrupt):
        run(path, first, *Variant)
    # One of the five was the plan.
    assert sum(len(result.blocks) for result in results(path).values()) == 4
    second, third = Children(), Children()
    run(path, second, *Variant)
    assert first.done + second.done == whole.done
    run(path, third, *Variant)
    assert third.done == []
    assert len(load_benchmark(path).commands) == 1
    # A file can get further cases.
    run(path, Children(), STOCK, cases=(HALF_CASE,))
    assert list(load_benchmark(path).by_case) == [CASE, HALF_CASE]
    assert len(load_benchmark(path).commands) == 2


def test_records_a_failure_and_goes_on(path: pathlib.Path) -> None:
    to_crash = {(CASE, XLA, 0), (HALF_CASE, STOCK, 1)}

    def crash(request: Request) -> Outcome | None:
        is_it = (request.case, request.variant, request.repetition) in to_crash
        return Outcome(failure=CRASH) if is_it else None

    children, cases = Children(crash), (CASE, HALF_CASE)
    run(path, children, STOCK, XLA, cases=cases)
    # A failed variant is not tried in the second round, and keeps its earlier blocks.
    assert len(children.done) == 7 and "tf32 xla 1" not in children.done
    assert results(path)[XLA].failure == CRASH
    kept = results(path, HALF_CASE)[STOCK]
    assert kept.failure == CRASH and [block.repetition for block in kept.blocks] == [0]

    # The same command tries it again; another command leaves the entry as it is.
    run(path, Children(), PINNING)
    assert results(path)[XLA].failure == CRASH
    again = Children()
    run(path, again, STOCK, XLA, cases=cases)
    assert again.done == ["tf32 xla 0", "tf32 xla 1", "float16 stock 1"]
    assert all(each.failure is None for each in load_benchmark(path).results)


def test_plans_a_case_once_for_all_variants(path: pathlib.Path) -> None:
    children = Children()
    run(path, children, STOCK, OURS, PINNING)
    assert not any(each.needs_gpu for each in children.requests)
    [planned] = [each for each in children.requests if each.variant is None]
    assert planned.source == PlanSource(profile_path="p.json")
    used = {each.variant: each.plan_path for each in children.requests if each.variant}
    assert used == {STOCK: None, OURS: planned.plan_path, PINNING: planned.plan_path}
    stock, ours, pinning = results(path).values()
    assert stock.plan is None
    assert ours.plan == pinning.plan is not None
    # An existing plan may be from another profile.
    path.unlink()
    children = Children()
    run(path, children, OURS)
    assert children.done[0] == "plan tf32"


def test_refuses_another_plan_for_a_case_that_was_measured(path: pathlib.Path) -> None:
    plan = path.with_name("plan.json")
    plan.write_text("one")
    source = PlanSource(plan_path=str(plan))
    run(path, Children(), OURS, source=source, repetitions=1)
    plan.write_text("another")
    children = Children()
    # The second run has nothing left to measure.
    for repetitions in (2, 1):
        with pytest.raises(BenchmarkError, match=f"ResNet50.* another plan than '{plan}'"):
            run(path, children, OURS, source=source, repetitions=repetitions)
    assert children.requests == []


def test_budget_ends_the_run_before_a_process(
    path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]

    def take_ten_seconds(_request: Request) -> None:
        now[0] += 10.0

    monkeypatch.setattr("tf_interop.benchmark.run.time.monotonic", lambda: now[0])
    children = Children(take_ten_seconds)
    run(path, children, STOCK, XLA, budget_seconds=15.0)
    assert children.done == ["tf32 stock 0", "tf32 xla 0"]


def test_a_stopped_process_leaves_no_entry(path: pathlib.Path) -> None:
    stopped: list[bool] = []

    def stop_at_xla(request: Request) -> Outcome | None:
        if request.variant is XLA:
            stopped.append(True)
            return Outcome()
        return None

    children = Children(stop_at_xla)
    run(path, children, STOCK, XLA, should_stop=lambda: bool(stopped))
    assert list(results(path)) == [STOCK]


def test_checks_a_given_plan_before_measuring(path: pathlib.Path) -> None:
    told: list[str] = []
    path.with_name("plan.json").write_text("one")
    source = PlanSource(plan_path=str(path.with_name("plan.json")))
    children = Children(lambda each: Outcome(refusal="no") if each.variant is None else None)
    with pytest.raises(BenchmarkError, match=f"{CASE.model}.*: no"):
        run(path, children, STOCK, OURS, source=source)
    assert (children.done, path.exists()) == ([], False)
    children = Children(lambda each: Outcome(note="for 1") if each.variant is None else None)
    run(path, children, STOCK, source=source, announce=told.append)
    assert told == []  # no variant uses it
    run(path, children, STOCK, OURS, source=source, announce=told.append)
    assert told == [f"{CASE.name}: for 1"]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (PlanSource(), "were made with --profile p.json and are made with --policy always now"),
        (PlanSource(tune_budget_s=30.0), "--tune 30s"),
        (PlanSource(profile_path="q.json"), "q.json"),
    ],
)
def test_refuses_to_resume_with_plans_from_elsewhere(
    path: pathlib.Path, other: PlanSource, words: str
) -> None:
    source = PlanSource(profile_path="p.json")
    begun = new_benchmark(CPU, VERSIONS, "…", OPTIONS, path, source)
    save_benchmark(begun, path)
    assert new_benchmark(CPU, VERSIONS, "…", OPTIONS, path, source) == begun
    with pytest.raises(BenchmarkError, match=words):
        new_benchmark(CPU, VERSIONS, "…", OPTIONS, path, other)


def test_two_processes_do_not_write_one_file(path: pathlib.Path) -> None:
    class Meanwhile(Children):
        def __call__(self, *arguments: Any, **others: Any) -> Outcome:
            if len(self.done) == 1:
                save_benchmark(load_benchmark(path), path)
            return super().__call__(*arguments, **others)

    with pytest.raises(BenchmarkError, match="Another process has written"):
        run(path, Meanwhile(), STOCK, XLA)
    assert len(load_benchmark(path).results) == 1


def test_names_that_look_alike_have_plans_of_their_own(path: pathlib.Path) -> None:
    names = (
        "模型甲.keras",
        "模型乙.keras",
        "a/b.keras",
        "a_b.keras",
        *("x" * 200 + y for y in "yz"),
    )
    cases = tuple(dataclasses.replace(CASE, model=name) for name in names)
    children = Children()
    run(path, children, OURS, cases=cases, repetitions=1)
    assert len({each.plan_path for each in children.requests if each.variant is None}) == len(names)


@pytest.mark.parametrize(
    ("device", "versions", "measuring", "what"),
    [
        (GPU, VERSIONS, OPTIONS, "backend"),
        (CPU, {"tensorflow": "2.22.0"}, OPTIONS, ": tensorflow was 2.21.0 and is 2.22.0 now"),
        (CPU, VERSIONS, dataclasses.replace(OPTIONS, steps=9), ": --steps was 2 and is 9 now[.]"),
    ],
)
def test_refuses_to_resume_with_another_device_software_or_options(
    path: pathlib.Path, device: object, versions: object, measuring: object, what: str
) -> None:
    run(path, Children(), STOCK)
    with pytest.raises(BenchmarkError, match=what):
        new_benchmark(device, versions, "…", measuring, path)
    new_benchmark(CPU, VERSIONS, "…", OPTIONS, path, PlanSource(tune_budget_s=1.0))
    # Other variants may need further packages.
    more = VERSIONS | {"openvino": "2026.4.1"}
    assert new_benchmark(CPU, more, "…", OPTIONS, path).made_with == more
    longer = dataclasses.replace(OPTIONS, timeout_seconds=99.0)
    assert new_benchmark(CPU, VERSIONS, "…", longer, path).options == longer
