"""Runs a benchmark: one process for each block; the variants of a case take turns.

    round 1    case 1: stock xla ours    case 2: stock xla ours    …
    round 2    case 1: xla ours stock    case 2: xla ours stock    …

Drifting clocks and temperatures and other users of the machine then affect all variants alike, and
every case has one round before any has two. The file is written after every process, so the same
command continues a run that was killed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import pathlib
import re
import time
from collections.abc import Callable, Sequence

from tf_interop.benchmark.child import Outcome, Request
from tf_interop.benchmark.result import (
    Benchmark,
    Case,
    Failure,
    MeasuringOptions,
    PlanSource,
    Result,
    Variant,
    load_benchmark,
    save_benchmark,
)
from tf_interop.errors import BenchmarkError
from tf_interop.profile.types import ProfiledDevice, why_foreign

Listener = Callable[[str, int, int, str], object]
"""Called with what begins, the number of blocks that are done, their total, and the time left."""


def new_benchmark(
    device: ProfiledDevice,
    made_with: dict[str, str],
    command: str,
    measuring: MeasuringOptions,
    path: pathlib.Path,
    source: PlanSource | None = None,
) -> Benchmark:
    """An empty benchmark, or the one that is already in the file `path`.

    `source` is where the plans come from; None if no variant has one.

    Raises:
        BenchmarkError: that one was measured elsewhere, with other versions, options or plans.
    """
    # Reading a pipe would never end.
    if not path.is_file():
        return Benchmark(device, made_with, (command,), measuring, plan_source=source)
    before = load_benchmark(path)
    difference = why_foreign(before.device, device)
    if difference is None:
        was = before.made_with | _timing_options(before.options)
        now = made_with | _timing_options(measuring)
        # A version is missing if none of its variants was measured.
        difference = ", ".join(
            f"{name} was {was[name]} and is {now[name]} now"
            for name in was
            if name in now and was[name] != now[name]
        )
    was_source = before.plan_source
    if not difference and was_source is not None and source is not None:
        are_files = was_source.plan_path is not None and source.plan_path is not None
        if was_source != source and not are_files:  # each block has the digest of its plan
            difference = f"plans were made {was_source} and are made {source} now"
    if difference:
        raise BenchmarkError(
            f"The results in '{path}' were measured differently: {difference}. Choose another file."
        )
    commands = tuple(dict.fromkeys((*before.commands, command)))
    return dataclasses.replace(
        before,
        made_with=before.made_with | made_with,
        commands=commands,
        options=measuring,
        plan_source=before.plan_source or source,
    )


def _timing_options(measuring: MeasuringOptions) -> dict[str, str]:
    """The options that change values, as on the command line."""
    values = dataclasses.asdict(measuring)
    del values["timeout_seconds"]
    return {f"--{name.replace('_', '-')}": str(value) for name, value in values.items()}


@dataclasses.dataclass
class BenchmarkRun:
    """Measures block by block; `benchmark` has the results so far.

    A variant that cannot run a case has no result of it. `run_child` is that of `child.py`.
    `core_seconds` are of `CoreSpeed`.
    """

    benchmark: Benchmark
    path: pathlib.Path
    cases: Sequence[Case]
    variants: Sequence[Variant]
    run_child: Callable[..., Outcome]
    repetitions: int
    source: PlanSource
    core_seconds: dict[int, float] = dataclasses.field(default_factory=dict)
    budget_seconds: float = float("inf")
    should_stop: Callable[[], bool] = lambda: False
    listener: Listener = lambda what, done, total, left: None
    announce: Callable[[str], object] = lambda text: None
    _plans: dict[Case, pathlib.Path | Failure] = dataclasses.field(default_factory=dict)
    _written: tuple[int, int] | None = None  # the file's inode and time when it was last written
    _begun: float = 0.0
    _done_before: int = 0

    def __post_init__(self) -> None:
        """Forgets earlier failures, so that these blocks are tried again."""
        kept = (
            dataclasses.replace(each, failure=None)
            if each.case in self.cases and each.variant in self.variants
            else each
            for each in self.benchmark.results
        )
        results = tuple(each for each in kept if each.blocks or each.failure)
        self.benchmark = dataclasses.replace(self.benchmark, results=results)
        self._written = _state_of(self.path)

    @property
    def blocks(self) -> list[tuple[Case, Variant, int]]:
        """All rounds of the variants of the cases, in the order in which they are measured."""
        return [
            (case, variant, repetition)
            for repetition in range(self.repetitions)
            for case in self.cases
            # The first variant finds a cooler machine, so each is first in some round.
            for first in [repetition % len(self.variants)]
            for variant in (*self.variants[first:], *self.variants[:first])
            if variant.can_run(case)
        ]

    def run(self) -> None:
        """Measures the blocks that are not in the file yet.

        Raises:
            BenchmarkError: the file cannot be written, another process writes it, or it has values
                of another plan; or the given plan is not for the model of a case, and then nothing
                was measured.
        """
        self._begun = time.monotonic()
        self._done_before = self._done_count
        self._check_plan()
        end = self._begun + self.budget_seconds
        for block in self.blocks:
            if self._is_wanted(*block):
                if self.should_stop() or time.monotonic() >= end:
                    return
                self._measure(*block)

    def _is_wanted(self, case: Case, variant: Variant, repetition: int) -> bool:
        has_failed = self.benchmark.of(case, variant).failure is not None
        return not has_failed and not self.benchmark.has(case, variant, repetition)

    def _measure(self, case: Case, variant: Variant, repetition: int) -> None:
        plan = self._plan_for(case) if variant.needs_plan else None
        if isinstance(plan, Failure):
            self._add(case, variant, None, Outcome(failure=plan))
        elif not self.should_stop():
            self._refuse_another_plan(case, variant, plan)
            request = Request(
                case,
                variant,
                None if plan is None else str(plan),
                repetition=repetition,
                options=self.benchmark.options,
                needs_gpu=self.benchmark.device.backend == "cudnn",
                core_seconds=self.core_seconds,
            )
            outcome = self._start(f"{variant.value}, round {repetition + 1}", request)
            self._add(case, variant, plan, outcome)

    def _check_plan(self) -> None:
        for case, variant in dict.fromkeys(block[:2] for block in self.blocks):
            path = self._plan_path(case) if variant.needs_plan else None
            if path is None or path.exists():
                self._refuse_another_plan(case, variant, path)
        if self.source.plan_path is None:
            return
        # The graphs of a program are unknown before it runs.
        wanted = (
            block for block in self.blocks if self._is_wanted(*block) and not block[0].is_program
        )
        # So are those of functions that XLA compiles.
        checked = (
            case
            for case, variant, _ in wanted
            if variant.needs_plan and not variant.is_compiled_by_xla
        )
        for case in dict.fromkeys(checked):
            found = self._start("checking the plan", Request(case, None, source=self.source))
            if found.refusal:
                raise BenchmarkError(f"{case.name}: {found.refusal}")
            if found.note:
                self.announce(f"{case.name}: {found.note}")

    @property
    def _done_count(self) -> int:
        return sum(not self._is_wanted(*block) for block in self.blocks)

    def _start(self, what: str, request: Request) -> Outcome:
        done, total = self._done_count, len(self.blocks)
        name = request.case.name_on(self.benchmark.device)
        left = ""
        if done > self._done_before:
            seconds = (time.monotonic() - self._begun) / (done - self._done_before) * (total - done)
            left = f"about {seconds / 60:.0f} min left" if seconds > 90 else f"{seconds:.0f} s left"
        self.listener(f"{name}: {what}", done, total, left)
        timeout_seconds = self.benchmark.options.timeout_seconds
        return self.run_child(request, timeout_seconds, should_stop=self.should_stop)

    def _plan_path(self, case: Case) -> pathlib.Path | None:
        """The file of a case's plan, which may not be made yet; None for a program's policy."""
        if self.source.plan_path is not None:
            return pathlib.Path(self.source.plan_path)
        if case.is_program:
            return None
        # Several names may become one.
        digest = hashlib.sha256(case.name.encode(errors="surrogateescape")).hexdigest()[:8]
        name = f"{re.sub(r'[^A-Za-z0-9.]+', '_', case.name)[-80:]}_{digest}"
        return self.path.with_name(f"{self.path.stem}.plans") / f"{name}.json"

    def _plan_for(self, case: Case) -> pathlib.Path | Failure | None:
        """The plan of a case, or why there is none; None if a program runs with a policy."""
        path = self._plan_path(case)
        if path is None or self.source.plan_path is not None:
            return path
        if case not in self._plans:
            # A plan of that name may be from an earlier run; only a measured one is used again.
            used = {each.plan for each in self.benchmark.results if each.case == case}
            failure = None
            if not path.exists() or _sha256(path) not in used:
                path.parent.mkdir(exist_ok=True)
                request = Request(case, None, str(path), self.source)
                failure = self._start("planning", request).failure
            self._plans[case] = path
            if failure is not None:
                message = f"no plan: {failure.message}"
                self._plans[case] = dataclasses.replace(failure, message=message)
        return self._plans[case]

    def _refuse_another_plan(
        self, case: Case, variant: Variant, plan_path: pathlib.Path | None
    ) -> None:
        before = self.benchmark.of(case, variant)
        if before.blocks and before.plan != (plan_path and _sha256(plan_path)):
            plan = f"'{plan_path}'" if plan_path else "--policy always"
            raise BenchmarkError(
                f"'{self.path}' has results of '{case.name}' with another plan than {plan}. Choose "
                "another file for the results."
            )

    def _add(
        self, case: Case, variant: Variant, plan_path: pathlib.Path | None, outcome: Outcome
    ) -> None:
        if outcome.block is None and outcome.failure is None:
            return
        plan = None if plan_path is None else _sha256(plan_path)
        before = self.benchmark.of(case, variant)
        added = before.blocks if outcome.block is None else (*before.blocks, outcome.block)
        blocks = tuple(sorted(added, key=lambda each: each.repetition))
        result = Result(case, variant, plan, outcome.failure, blocks)
        results = [result if each is before else each for each in self.benchmark.results]
        if result not in results:
            results.append(result)
        self.benchmark = dataclasses.replace(self.benchmark, results=tuple(results))
        if _state_of(self.path) not in (None, self._written):
            raise BenchmarkError(
                f"Another process has written '{self.path}' meanwhile, and its results stay there. "
                "Choose another file for one of the two."
            )
        save_benchmark(self.benchmark, self.path)
        self._written = _state_of(self.path)


def _state_of(path: pathlib.Path) -> tuple[int, int] | None:
    """The inode and the time of a regular file; None for others."""
    if not path.is_file():
        return None
    state = path.stat()
    return state.st_ino, state.st_mtime_ns


def _sha256(path: pathlib.Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
