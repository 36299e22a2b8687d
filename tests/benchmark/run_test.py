"""The order of blocks, resuming, failures and budgets, with processes that are made up."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Callable

import pytest
from benchmark_values import CASE, OPTIONS, make_block
from profile_values import CPU, GPU

from tf_interop.benchmark.child import Answer, Request
from tf_interop.benchmark.file import load_benchmark
from tf_interop.benchmark.result import (
    Benchmark,
    Case,
    Failure,
    FailureKind,
    Precision,
    Variant,
)
from tf_interop.benchmark.run import (
    BenchmarkRun,
    Listener,
    PlanSource,
    RunOptions,
    new_benchmark,
    plan_folder,
)
from tf_interop.errors import BenchmarkError

HALF_CASE = dataclasses.replace(CASE, precision=Precision.FLOAT16)
CRASH = Failure(FailureKind.CRASHED, "the process was ended by SIGSEGV")
VERSIONS = {"tensorflow": "2.21.0"}


class Children:
    """Answers requests in place of processes, and remembers them."""

    def __init__(self, answer: Callable[[Request], Answer | None] = lambda request: None) -> None:
        self.done: list[str] = []
        self.requests: list[Request] = []
        self._answer = answer

    def __call__(self, request: Request, timeout_seconds: float) -> Answer:
        assert timeout_seconds == OPTIONS.timeout_seconds
        self.requests.append(request)
        answer = self._answer(request)
        if request.plan is not None:
            self.done.append(f"plan {request.plan.case.precision.value}")
            if answer is None:
                pathlib.Path(request.plan.plan_path).write_text(f"plan {len(self.done)}")
            return answer or Answer()
        block = request.block
        assert block is not None
        self.done.append(f"{block.case.precision.value} {block.variant.value} {block.repetition}")
        return answer or Answer(block=make_block(block.repetition, 10.0 + len(self.done)))


def options(*variants: Variant, cases: tuple[Case, ...] = (CASE,), **others: object) -> RunOptions:
    chosen = RunOptions(
        cases, variants, 2, OPTIONS, lambda case: PlanSource(profile_path=pathlib.Path("p.json"))
    )
    return dataclasses.replace(chosen, **others)  # type: ignore[arg-type]


def begin(path: pathlib.Path, command: str = "tf-interop benchmark …") -> Benchmark:
    return new_benchmark(CPU, VERSIONS, command, OPTIONS, path)


def run(path: pathlib.Path, chosen: RunOptions, children: Children, **others: object) -> bool:
    return BenchmarkRun(begin(path), path, chosen, children, **others).run(Listener())  # type: ignore[arg-type]


def test_variants_take_turns_and_every_case_has_one_before_any_has_two(
    tmp_path: pathlib.Path,
) -> None:
    children = Children()
    path = tmp_path / "results.json"
    chosen = options(Variant.STOCK, Variant.XLA, cases=(CASE, HALF_CASE))
    assert run(path, chosen, children)
    assert children.done == [
        "tf32 stock 0", "tf32 xla 0", "float16 stock 0", "float16 xla 0",
        "tf32 xla 1", "tf32 stock 1", "float16 xla 1", "float16 stock 1",
    ]  # fmt: skip
    stock, xla = load_benchmark(path).results[:2]
    assert (stock.variant, xla.variant) == (Variant.STOCK, Variant.XLA)
    # 11 and 16 against 12 and 15.
    assert xla.summary is not None
    assert xla.summary.speedup is not None
    assert xla.summary.speedup.lowest == pytest.approx(11 / 12)
    assert xla.summary.speedup.highest == pytest.approx(16 / 15)


def test_goes_on_where_it_was_killed(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "results.json"
    whole = Children()
    chosen = options(*Variant)
    run(path, chosen, whole)
    path.unlink()
    for each in plan_folder(path).iterdir():
        each.unlink()

    class KilledError(Exception):
        pass

    def kill_at_fifth(request: Request) -> None:
        if len(first.done) == 5:
            raise KilledError

    first = Children(kill_at_fifth)
    with pytest.raises(KilledError):
        run(path, chosen, first)
    # One of the five was the plan.
    assert sum(len(result.blocks) for result in load_benchmark(path).results) == 4
    second = Children()
    assert run(path, chosen, second)
    assert first.done + second.done == whole.done
    third = Children()
    assert run(path, chosen, third)
    assert third.done == []
    assert load_benchmark(path).commands == ("tf-interop benchmark …",)


def test_the_file_may_grow(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "results.json"
    run(path, options(Variant.STOCK), Children())
    grown = begin(path, "another command")
    BenchmarkRun(grown, path, options(Variant.STOCK, cases=(HALF_CASE,)), Children()).run(
        Listener()
    )
    loaded = load_benchmark(path)
    assert [result.case for result in loaded.results] == [CASE, HALF_CASE]
    assert loaded.commands == ("tf-interop benchmark …", "another command")


def test_a_failure_is_an_entry_and_the_rest_goes_on(tmp_path: pathlib.Path) -> None:
    def crash_xla_later(request: Request) -> Answer | None:
        block = request.block
        if block is not None and block.variant is Variant.XLA and block.case is CASE:
            return Answer(failure=CRASH)
        return None

    path = tmp_path / "results.json"
    children = Children(crash_xla_later)
    chosen = options(Variant.STOCK, Variant.XLA, cases=(CASE, HALF_CASE))
    assert run(path, chosen, children)
    # What failed is not tried in the second turn.
    assert children.done.count("tf32 xla 0") == 1
    assert "tf32 xla 1" not in children.done
    assert "float16 xla 1" in children.done
    failed = next(each for each in load_benchmark(path).results if each.failure is not None)
    assert (failed.case, failed.variant, failed.failure) == (CASE, Variant.XLA, CRASH)

    again = Children()
    run(path, chosen, again)
    assert again.done == []
    run(path, dataclasses.replace(chosen, retry_failures=True), again)
    assert again.done == ["tf32 xla 0", "tf32 xla 1"]
    assert all(each.failure is None for each in load_benchmark(path).results)


def test_a_failure_keeps_the_blocks_before_it(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "results.json"

    def crash_second_turn(request: Request) -> Answer | None:
        is_second = request.block is not None and request.block.repetition == 1
        return Answer(failure=CRASH) if is_second else None

    run(path, options(Variant.STOCK), Children(crash_second_turn))
    [result] = load_benchmark(path).results
    assert result.failure == CRASH
    assert [block.repetition for block in result.blocks] == [0]
    assert result.summary is not None


def test_a_case_is_planned_once_for_all_variants(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "results.json"
    children = Children()
    run(path, options(Variant.STOCK, Variant.OURS, Variant.PINNING), children)
    assert [each for each in children.done if each.startswith("plan")] == ["plan tf32"]
    [planned] = [each.plan for each in children.requests if each.plan is not None]
    assert planned.profile_path == "p.json"
    used = {each.block.variant: each.block.plan_path for each in children.requests if each.block}
    assert used == {
        Variant.STOCK: None,
        Variant.OURS: planned.plan_path,
        Variant.PINNING: planned.plan_path,
    }
    stock, ours, pinning = load_benchmark(path).results
    assert stock.plan is None
    assert ours.plan == pinning.plan
    assert ours.plan is not None


def test_where_planning_fails_each_variant_says_so(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "results.json"
    children = Children(lambda request: Answer(failure=CRASH) if request.plan else None)
    run(path, options(Variant.STOCK, Variant.OURS, Variant.PINNING), children)
    assert children.done == ["tf32 stock 0", "plan tf32", "tf32 stock 1"]
    for result in load_benchmark(path).results[1:]:
        assert result.failure == Failure(FailureKind.CRASHED, f"no plan: {CRASH.message}")


def test_a_plan_that_lies_there_from_before_is_not_taken(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "results.json"
    run(path, options(Variant.OURS), Children())
    path.unlink()
    children = Children()
    run(path, options(Variant.OURS), children)
    assert children.done[0] == "plan tf32"


def test_refuses_another_plan_for_a_case_that_has_figures(tmp_path: pathlib.Path) -> None:
    path, plan = tmp_path / "results.json", tmp_path / "plan.json"
    plan.write_text("one")
    chosen = options(Variant.OURS, source_of=lambda case: PlanSource(plan_path=plan), repetitions=1)
    run(path, chosen, Children())
    plan.write_text("another")
    with pytest.raises(BenchmarkError, match="Expected the plan that 'ResNet50, inference"):
        run(path, dataclasses.replace(chosen, repetitions=2), Children())
    [result] = load_benchmark(path).results
    assert len(result.blocks) == 1


def test_budget_ends_the_run_before_a_process(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "results.json"
    now = [0.0]

    def take_ten_seconds(request: Request) -> None:
        now[0] += 10.0

    children = Children(take_ten_seconds)
    chosen = options(Variant.STOCK, Variant.XLA, budget_seconds=15.0)
    assert not run(path, chosen, children, clock=lambda: now[0])
    assert children.done == ["tf32 stock 0", "tf32 xla 0"]
    assert len(load_benchmark(path).results) == 2


def test_a_process_that_was_stopped_leaves_no_entry(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "results.json"
    stopped: list[bool] = []

    def stop_at_xla(request: Request) -> Answer | None:
        if request.block is not None and request.block.variant is Variant.XLA:
            stopped.append(True)
            return Answer()
        return None

    children = Children(stop_at_xla)
    chosen = options(Variant.STOCK, Variant.XLA)
    assert not run(path, chosen, children, should_stop=lambda: bool(stopped))
    assert [result.variant for result in load_benchmark(path).results] == [Variant.STOCK]


def test_listener_is_told_what_is_done(tmp_path: pathlib.Path) -> None:
    told: list[tuple[str, int, int]] = []

    class Remembering(Listener):
        def begin(self, what: str, done: int, total: int) -> None:
            told.append((what, done, total))

    path = tmp_path / "results.json"
    BenchmarkRun(begin(path), path, options(Variant.OURS), Children()).run(Remembering())
    assert told == [
        (f"{CASE.name_on(CPU)}: planning", 0, 2),
        (f"{CASE.name_on(CPU)}: ours, turn 1", 0, 2),
        (f"{CASE.name_on(CPU)}: ours, turn 2", 1, 2),
    ]


@pytest.mark.parametrize(
    ("device", "versions", "measuring", "message"),
    [
        (GPU, VERSIONS, OPTIONS, "backend: expected 'cudnn', got 'host'"),
        (CPU, {"tensorflow": "2.22.0"}, OPTIONS, "software: expected .*2.22.0.*got .*2.21.0"),
        (CPU, VERSIONS, dataclasses.replace(OPTIONS, steps=9), "options: expected .*steps=9"),
    ],
)
def test_refuses_to_go_on_elsewhere_or_otherwise(
    tmp_path: pathlib.Path, device: object, versions: object, measuring: object, message: str
) -> None:
    path = tmp_path / "results.json"
    run(path, options(Variant.STOCK), Children())
    with pytest.raises(BenchmarkError, match=message):
        new_benchmark(device, versions, "…", measuring, path)  # type: ignore[arg-type]
    longer = dataclasses.replace(OPTIONS, timeout_seconds=99.0)
    assert new_benchmark(CPU, VERSIONS, "…", longer, path).options == longer


def test_figures_of_a_gpu_are_asked_of_a_gpu(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "results.json"
    children = Children()
    begun = new_benchmark(GPU, VERSIONS, "…", OPTIONS, path)
    BenchmarkRun(begun, path, options(Variant.STOCK), children).run(Listener())
    assert all(each.block is not None and each.block.needs_gpu for each in children.requests)
    assert json.loads(path.read_text())["device"]["name"] == GPU.name


def test_a_plan_without_a_stage_has_no_ratio_to_stock(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "results.json"
    run(path, options(Variant.STOCK, Variant.XLA, Variant.OURS), Children())
    speedups = {
        result.variant: result.summary is not None and result.summary.speedup
        for result in load_benchmark(path).results
    }
    assert speedups[Variant.XLA]
    assert speedups[Variant.OURS] is None
