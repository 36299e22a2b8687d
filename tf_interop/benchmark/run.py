"""Runs a benchmark: a process for each block, the variants of a case by turns.

    turn 1    case 1: stock xla ours    case 2: stock xla ours    …
    turn 2    case 1: xla ours stock    case 2: xla ours stock    …

Drift of clocks and temperature, and other users of the machine, so hit all variants alike; and
where time is short every case has a turn before any has two. The file is written after every
process: a run that was killed goes on when the same command is given again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import pathlib
import re
import time
from collections.abc import Callable

from tf_interop.benchmark.child import Outcome, Request
from tf_interop.benchmark.file import load_benchmark, save_benchmark
from tf_interop.benchmark.result import (
    Benchmark,
    Case,
    CaseResult,
    Failure,
    MeasuringOptions,
    Variant,
    VariantResult,
)
from tf_interop.errors import BenchmarkError
from tf_interop.profile.types import ProfiledDevice, why_foreign

RunChild = Callable[[Request, float], Outcome]
"""Runs a request in a process of its own, for some seconds at most."""
Listener = Callable[[str, int, int], object]
"""Is told what a process is begun for, how many blocks are done, and how many there are."""


@dataclasses.dataclass(frozen=True)
class PlanSource:
    """Where the plan of a case comes from; with neither file every convolution is in a stage.

    Attributes:
        plan_path: a plan file that holds it.
        profile_path: a profile to plan each case by.
        allow_foreign_profile: whether the profile may be of another device.
    """

    plan_path: pathlib.Path | None = None
    profile_path: pathlib.Path | None = None
    allow_foreign_profile: bool = False


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """What to run.

    Attributes:
        cases: in this order.
        variants: in this order in the first turn.
        repetitions: how many turns.
        measuring: how to measure a block.
        source_of: where the plan of a case comes from; None where no variant needs one.
        budget_seconds: when to begin no further process; None for no limit.
        retry_failures: whether to try again what failed before.
    """

    cases: tuple[Case, ...]
    variants: tuple[Variant, ...]
    repetitions: int
    measuring: MeasuringOptions
    source_of: Callable[[Case], PlanSource | None] = lambda case: None
    budget_seconds: float | None = None
    retry_failures: bool = False


def new_benchmark(
    device: ProfiledDevice,
    made_with: dict[str, str],
    command: str,
    measuring: MeasuringOptions,
    path: pathlib.Path,
) -> Benchmark:
    """An empty benchmark, or the one that is in the file `path` already.

    Raises:
        BenchmarkError: that one was measured elsewhere, with other versions or otherwise.
    """
    if not path.exists():
        return Benchmark(device, made_with, (command,), measuring)
    before = load_benchmark(path)
    difference = why_foreign(before.device, device)
    if difference is None and before.made_with != made_with:
        difference = f"software: expected {made_with}, got {before.made_with}"
    if difference is None and _as_timed(before.options) != _as_timed(measuring):
        difference = f"options: expected {measuring}, got {before.options}"
    if difference is not None:
        raise BenchmarkError(
            f"Expected benchmark '{path}' to be measured as this one is, got another: {difference}."
            " Choose another file."
        )
    commands = tuple(dict.fromkeys((*before.commands, command)))
    return dataclasses.replace(before, commands=commands, options=measuring)


def _as_timed(measuring: MeasuringOptions) -> MeasuringOptions:
    """Without what changes no value."""
    return dataclasses.replace(measuring, timeout_seconds=1.0)


class BenchmarkRun:
    """One run. It holds everything that is in the file, and keeps the file up to date."""

    def __init__(
        self,
        benchmark: Benchmark,
        path: pathlib.Path,
        options: RunOptions,
        run_child: RunChild,
        *,
        should_stop: Callable[[], bool] = lambda: False,
        listener: Listener = lambda what, done, total: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepares a run.

        Args:
            benchmark: what there is already.
            path: the benchmark's file.
            options: what to run.
            run_child: runs a process.
            should_stop: asked before each process.
            listener: told before each process.
            clock: in seconds.
        """
        self._benchmark = benchmark
        self._path = path
        self._options = options
        self._run_child = run_child
        self._should_stop = should_stop
        self._listener = listener
        self._clock = clock
        self._end = None if options.budget_seconds is None else clock() + options.budget_seconds
        self._planned: set[Case] = set()
        self._results: dict[Case, dict[Variant, VariantResult]] = {}
        for result, measured in benchmark.variant_results:
            kept = dataclasses.replace(measured, failure=None)
            if not options.retry_failures:
                kept = measured
            if kept.blocks or kept.failure:
                self._results.setdefault(result.case, {})[kept.variant] = kept

    @property
    def benchmark(self) -> Benchmark:
        """What has been measured so far, by this run and before."""
        results = tuple(
            CaseResult(case, tuple(each.values())) for case, each in self._results.items()
        )
        return dataclasses.replace(self._benchmark, results=results)

    def run(self) -> bool:
        """Measures what is not in the file yet.

        Returns:
            Whether everything is there now; False where time was over or the run was stopped.

        Raises:
            BenchmarkError: the file cannot be written, or holds values of another plan.
        """
        for block in self._blocks():
            if self._is_wanted(*block):
                if self._should_stop() or (self._end is not None and self._clock() >= self._end):
                    return False
                self._measure(*block)
        return True

    def _blocks(self) -> list[tuple[Case, Variant, int]]:
        """All blocks of this run, in order."""
        variants = self._options.variants
        return [
            (case, variant, repetition)
            for repetition in range(self._options.repetitions)
            for case in self._options.cases
            # Who comes first finds a cooler machine: no variant always does.
            for first in [repetition % len(variants)]
            for variant in variants[first:] + variants[:first]
        ]

    def _result(self, case: Case, variant: Variant) -> VariantResult:
        return self._results.get(case, {}).get(variant, VariantResult(variant))

    def _is_wanted(self, case: Case, variant: Variant, repetition: int) -> bool:
        result = self._result(case, variant)
        is_there = any(block.repetition == repetition for block in result.blocks)
        return result.failure is None and not is_there

    def _measure(self, case: Case, variant: Variant, repetition: int) -> None:
        plan_path = None
        if variant.needs_plan:
            plan_path, failure = self._plan_for(case)
            if plan_path is None:
                # None of either: the run was stopped while it was planned.
                if failure is not None:
                    self._add(case, variant, None, Outcome(failure=failure))
                return
        request = Request(
            case,
            variant,
            None if plan_path is None else str(plan_path),
            repetition=repetition,
            options=self._options.measuring,
            needs_gpu=self._benchmark.device.backend == "cudnn",
        )
        outcome = self._start(f"{variant.value}, turn {repetition + 1}", request)
        self._add(case, variant, plan_path, outcome)

    def _start(self, what: str, request: Request) -> Outcome:
        blocks = self._blocks()
        done = sum(not self._is_wanted(*block) for block in blocks)
        name = request.case.name_on(self._benchmark.device)
        self._listener(f"{name}: {what}", done, len(blocks))
        return self._run_child(request, self._options.measuring.timeout_seconds)

    def _plan_for(self, case: Case) -> tuple[pathlib.Path | None, Failure | None]:
        """The plan of a case, or why there is none."""
        source = self._options.source_of(case)
        if source is None:
            raise BenchmarkError(f"Expected a plan for '{case.name}', got no source of one.")
        if source.plan_path is not None:
            return source.plan_path, None
        path = plan_folder(self._path) / f"{_as_file_name(case.name)}.json"
        before = [
            each for variant, each in self._results.get(case, {}).items() if variant.needs_plan
        ]
        # What lies there may be another plan of that name, not that of the values in the file.
        if path.exists() and (
            case in self._planned or _sha256(path) in {each.plan for each in before}
        ):
            return path, None
        for each in before:
            if each.plan is None and each.failure is not None:
                return None, each.failure
        path.parent.mkdir(exist_ok=True)
        profile_path = None if source.profile_path is None else str(source.profile_path)
        request = Request(case, None, str(path), profile_path, source.allow_foreign_profile)
        failure = self._start("planning", request).failure
        if failure is not None:
            return None, dataclasses.replace(failure, message=f"no plan: {failure.message}")
        if self._should_stop():
            return None, None
        self._planned.add(case)
        return path, None

    def _add(
        self, case: Case, variant: Variant, plan_path: pathlib.Path | None, outcome: Outcome
    ) -> None:
        if outcome.block is None and outcome.failure is None:
            return
        plan = None if plan_path is None else _sha256(plan_path)
        before = self._result(case, variant)
        if before.blocks and before.plan != plan:
            raise BenchmarkError(
                f"Expected the plan that '{case.name}' was measured with before (SHA-256 "
                f"{before.plan}), got another in '{plan_path}'. Choose another file for the "
                "results."
            )
        added = before.blocks if outcome.block is None else (*before.blocks, outcome.block)
        blocks = tuple(sorted(added, key=lambda each: each.repetition))
        results = self._results.setdefault(case, {})
        results[variant] = VariantResult(variant, plan, outcome.failure, blocks)
        save_benchmark(self.benchmark, self._path)


def plan_folder(path: pathlib.Path) -> pathlib.Path:
    """Where the plans lie that were made for a benchmark's file."""
    return path.with_name(f"{path.stem}.plans")


def _as_file_name(text: str) -> str:
    # The hash keeps names apart that differ in what is replaced.
    plain = re.sub(r"[^A-Za-z0-9.]+", "_", text)[-100:]
    return f"{plain}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _sha256(path: pathlib.Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
