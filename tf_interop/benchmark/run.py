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
from collections.abc import Callable, Iterator, Sequence

from tf_interop.benchmark.child import Answer, BlockRequest, PlanRequest, Request
from tf_interop.benchmark.file import load_benchmark, save_benchmark
from tf_interop.benchmark.result import (
    Benchmark,
    Block,
    Case,
    Failure,
    MeasuringOptions,
    Variant,
    VariantResult,
)
from tf_interop.benchmark.statistics import summarize
from tf_interop.errors import BenchmarkError
from tf_interop.profile.foreign import why_foreign
from tf_interop.profile.types import ProfiledDevice

RunChild = Callable[[Request, float], Answer]
"""Runs a request in a process of its own, for some seconds at most."""


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


class Listener:
    """Is told how far a run is; this one does nothing."""

    def begin(self, what: str, done: int, total: int) -> None:
        """A process begins.

        Args:
            what: what it does.
            done: blocks that are measured, or failed.
            total: blocks of all cases.
        """


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
    """Without what does not change a figure."""
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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepares a run.

        Args:
            benchmark: what there is already.
            path: the benchmark's file.
            options: what to run.
            run_child: runs a process.
            should_stop: asked before each process.
            clock: in seconds.
        """
        self._benchmark = benchmark
        self._path = path
        self._options = options
        self._run_child = run_child
        self._should_stop = should_stop
        self._clock = clock
        self._end = None if options.budget_seconds is None else clock() + options.budget_seconds
        self._planned: set[Case] = set()
        self._results = {
            (result.case, result.variant): result
            for result in benchmark.results
            if not (options.retry_failures and result.failure is not None and not result.blocks)
        }

    @property
    def benchmark(self) -> Benchmark:
        """What has been measured so far, by this run and before."""
        return dataclasses.replace(self._benchmark, results=tuple(self._results.values()))

    @property
    def seconds_left(self) -> float | None:
        """Until no further process is begun; None where time is not limited."""
        return None if self._end is None else max(self._end - self._clock(), 0.0)

    def run(self, listener: Listener) -> bool:
        """Measures what is not in the file yet.

        Returns:
            Whether everything is there now; False where time was over or the run was stopped.

        Raises:
            BenchmarkError: the file cannot be written, or holds figures of another plan.
        """
        self._forget_failures()
        for case, variant, repetition in self._blocks():
            if self._is_wanted(case, variant, repetition):
                if self._is_over():
                    return False
                self._measure(case, variant, repetition, listener)
        return True

    def _blocks(self) -> Iterator[tuple[Case, Variant, int]]:
        """All blocks of this run, in order."""
        for repetition in range(self._options.repetitions):
            for case in self._options.cases:
                for variant in self._order(repetition):
                    yield case, variant, repetition

    def _forget_failures(self) -> None:
        if self._options.retry_failures:
            for key, result in self._results.items():
                self._results[key] = dataclasses.replace(result, failure=None)

    def _order(self, repetition: int) -> Sequence[Variant]:
        # Who comes first finds a cooler machine: no variant always does.
        variants = self._options.variants
        first = repetition % len(variants)
        return variants[first:] + variants[:first]

    def _is_wanted(self, case: Case, variant: Variant, repetition: int) -> bool:
        result = self._results.get((case, variant))
        if result is None:
            return True
        return result.failure is None and all(
            block.repetition != repetition for block in result.blocks
        )

    def _is_over(self) -> bool:
        return self._should_stop() or self.seconds_left == 0.0

    def _measure(self, case: Case, variant: Variant, repetition: int, listener: Listener) -> None:
        plan_path = None
        if variant.needs_plan:
            plan_path, failure = self._plan_for(case, listener)
            if plan_path is None:
                # None of either: the run was stopped while it was planned.
                if failure is not None:
                    self._add(case, variant, None, Answer(failure=failure))
                return
        self._begin(listener, f"{self._name(case)}: {variant.value}, turn {repetition + 1}")
        request = BlockRequest(
            case,
            variant,
            repetition,
            self._options.measuring,
            None if plan_path is None else str(plan_path),
            needs_gpu=self._benchmark.device.backend == "cudnn",
        )
        answer = self._run_child(Request(block=request), self._options.measuring.timeout_seconds)
        self._add(case, variant, plan_path, answer)

    def _plan_for(
        self, case: Case, listener: Listener
    ) -> tuple[pathlib.Path | None, Failure | None]:
        """The plan of a case, or why there is none."""
        source = self._options.source_of(case)
        if source is None:
            raise BenchmarkError(f"Expected a plan for '{case.name}', got no source of one.")
        if source.plan_path is not None:
            return source.plan_path, None
        path = plan_folder(self._path) / f"{_as_file_name(case.name)}.json"
        if path.exists() and (case in self._planned or self._was_measured_with(case, path)):
            return path, None
        failure = self._failure_of_plan(case)
        if failure is not None:
            return None, failure
        self._begin(listener, f"{self._name(case)}: planning")
        path.parent.mkdir(exist_ok=True)
        request = PlanRequest(
            case,
            str(path),
            None if source.profile_path is None else str(source.profile_path),
            source.allow_foreign_profile,
        )
        answer = self._run_child(Request(plan=request), self._options.measuring.timeout_seconds)
        if answer.failure is not None:
            message = f"no plan: {answer.failure.message}"
            return None, dataclasses.replace(answer.failure, message=message)
        if self._should_stop():
            return None, None
        self._planned.add(case)
        return path, None

    def _was_measured_with(self, case: Case, plan_path: pathlib.Path) -> bool:
        """Whether a plan is that of figures in the file, and not of another one of that name."""
        plan = _sha256(plan_path)
        return any(result.plan == plan for (of, _), result in self._results.items() if of == case)

    def _failure_of_plan(self, case: Case) -> Failure | None:
        """Why another variant of the case has no plan."""
        for variant in Variant:
            result = self._results.get((case, variant))
            if (
                variant.needs_plan
                and result is not None
                and result.plan is None
                and result.failure is not None
            ):
                return result.failure
        return None

    def _add(
        self, case: Case, variant: Variant, plan_path: pathlib.Path | None, answer: Answer
    ) -> None:
        if answer.block is None and answer.failure is None:
            return
        plan = None if plan_path is None else _sha256(plan_path)
        before = self._results.get((case, variant))
        blocks: tuple[Block, ...] = () if before is None else before.blocks
        if before is not None and blocks and before.plan != plan:
            raise BenchmarkError(
                f"Expected the plan that '{case.name}' was measured with before (SHA-256 "
                f"{before.plan}), got another in '{plan_path}'. Choose another file for the "
                "results."
            )
        if answer.block is not None:
            blocks = tuple(sorted((*blocks, answer.block), key=lambda each: each.repetition))
        self._results[case, variant] = VariantResult(
            case, variant, plan, None, answer.failure, blocks
        )
        self._sum_up(case)
        save_benchmark(self.benchmark, self._path)

    def _sum_up(self, case: Case) -> None:
        stock = self._results.get((case, Variant.STOCK))
        for variant in Variant:
            result = self._results.get((case, variant))
            if result is not None:
                compared = () if stock is None or result.ran_as_stock else stock.blocks
                self._results[case, variant] = dataclasses.replace(
                    result, summary=summarize(result.blocks, case.batch_size, compared)
                )

    def _name(self, case: Case) -> str:
        return case.name_on(self._benchmark.device)

    def _begin(self, listener: Listener, what: str) -> None:
        every = list(self._blocks())
        done = sum(not self._is_wanted(*each) for each in every)
        listener.begin(what, done, len(every))


def plan_folder(path: pathlib.Path) -> pathlib.Path:
    """Where the plans lie that were made for a benchmark's file."""
    return path.with_name(f"{path.stem}.plans")


def _as_file_name(text: str) -> str:
    # The hash keeps names apart that differ in what is replaced.
    plain = re.sub(r"[^A-Za-z0-9.]+", "_", text)[-100:]
    return f"{plain}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _sha256(path: pathlib.Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
