"""The order of measurements, repeated runs, and the ends of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from profile_values import TINY_1X1 as SMALL
from profile_values import TINY_5X5 as LARGE

from tf_interop.convolution import ConvolutionConfiguration, ConvolutionKind
from tf_interop.measure.core import AlgorithmScope, MeasureOptions
from tf_interop.measure.run import End, Outcome, Phase, ProfileRun, RunOptions
from tf_interop.profile.entries import (
    AlgorithmFailure,
    AlgorithmKey,
    AlgorithmMeasurement,
    Entry,
    FailureKind,
    StageMeasurement,
)
from tf_interop.profile.tables import describe_convolution
from tf_interop.profile.worklist import ConfigurationList, ListedConvolution, ListedStage
from tf_interop.stage import Lane, Stage, Step

WIDER = dataclasses.replace(SMALL, filter_shape=(1, 1, 3, 6), output_shape=(1, 8, 8, 6))
# The two of them merged.
WIDEST = dataclasses.replace(SMALL, filter_shape=(1, 1, 3, 10), output_shape=(1, 8, 8, 10))
NAMES = {SMALL: "small", LARGE: "large", WIDER: "wider", WIDEST: "widest"}

# In the backend's order, which is not the order of their times.
CONSIDERED = ("eng0", "eng1")
ALL = (*CONSIDERED, "eng2", "GEMM")
LATENCIES = {"eng0": 30.0, "eng1": 10.0, "eng2": 20.0, "GEMM": 40.0}


def listed(
    convolutions: Iterable[ConvolutionConfiguration], *stages: ListedStage
) -> ConfigurationList:
    return ConfigurationList(tuple(map(ListedConvolution, convolutions)), stages)


def listed_stage(*lanes: int | tuple[int, ...], **of_lanes: Sequence[Any]) -> ListedStage:
    """A listed stage; `algorithms` are for its first steps, and a lane of several is merged."""
    names = iter(of_lanes.get("algorithms", ()))
    priorities = of_lanes.get("priorities", (0,) * len(lanes))
    steps = [(each,) if isinstance(each, int) else each for each in lanes]
    return ListedStage(
        Stage(
            tuple(
                Lane(
                    tuple(Step(place, next(names, None)) for place in lane),
                    priority=priority,
                    merged=len(lane) > 1,
                )
                for lane, priority in zip(steps, priorities, strict=True)
            )
        ),
        images=tuple(of_lanes.get("images", ())),
    )


BOTH = listed((SMALL, LARGE))
PAIR = listed((SMALL, LARGE), listed_stage(0, 1))
ONE = listed((SMALL,))
TO_MERGE = (SMALL, WIDER, LARGE)
MERGED = listed(TO_MERGE, listed_stage((0, 1)))


@dataclasses.dataclass
class FakeBackend:
    """Has four algorithms of known times; the first rounds to TF32."""

    # Aliases of algorithms.
    stands_for: dict[str, str] = dataclasses.field(default_factory=dict)
    rounds_if_allowed: tuple[str, ...] = ()
    refuses: tuple[str, ...] = ()
    fails: tuple[str, ...] = ()
    fails_kind: FailureKind = FailureKind.OUT_OF_MEMORY
    # Once one of these has failed, nothing works any more.
    breaks: tuple[str, ...] = ()
    lists_nothing_for: tuple[ConvolutionConfiguration, ...] = ()
    measured: list[str] = dataclasses.field(default_factory=list)
    resolved: list[str] = dataclasses.field(default_factory=list)

    def list_algorithms(
        self, configuration: ConvolutionConfiguration, scope: AlgorithmScope, *, allow_tf32: bool
    ) -> tuple[str, ...]:
        if configuration.kind is not ConvolutionKind.FORWARD:
            raise ValueError("Expected a forward convolution.")
        if configuration in self.lists_nothing_for:
            raise ValueError("Expected memory, got none.")
        names = CONSIDERED if scope is AlgorithmScope.HEURISTIC else ALL
        return tuple(n for n in names if allow_tf32 or n != "eng0")

    def _key(
        self, configuration: ConvolutionConfiguration, algorithm: str, options: MeasureOptions
    ) -> AlgorithmKey:
        name = self.stands_for.get(algorithm, algorithm)
        rounds = name == "eng0" or (name in self.rounds_if_allowed and options.allow_tf32)
        return AlgorithmKey(configuration, name, rounds and configuration.dtype == "float32")

    def resolve_algorithm(
        self, configuration: ConvolutionConfiguration, algorithm: str, options: MeasureOptions
    ) -> AlgorithmKey | AlgorithmFailure:
        self.resolved.append(f"{NAMES[configuration]} {algorithm}")
        if algorithm in self.refuses:
            return AlgorithmFailure(
                configuration, algorithm, options.allow_tf32, FailureKind.UNSUPPORTED, "no", "fake"
            )
        return self._key(configuration, algorithm, options)

    def measure_algorithm(
        self, configuration: ConvolutionConfiguration, algorithm: str, options: MeasureOptions
    ) -> AlgorithmMeasurement | AlgorithmFailure:
        assert algorithm not in self.refuses
        key = self._key(configuration, algorithm, options)
        self.measured.append(f"{NAMES[configuration]} {key.algorithm}")
        if key.algorithm in self.breaks:
            self.fails = tuple(LATENCIES)
        if key.algorithm in self.fails:
            failed = configuration, key.algorithm, options.allow_tf32, self.fails_kind
            return AlgorithmFailure(*failed, "no", "fake")
        latency_us = LATENCIES[key.algorithm]
        return AlgorithmMeasurement(*key, latency_us, 0.1, 0, 0.0, True, (), "fake")

    def measure_stage(
        self,
        stage: Stage[ConvolutionConfiguration],
        options: MeasureOptions,
        *,
        sequential_algorithms: Sequence[str | None],
        images: Sequence[int],
    ) -> StageMeasurement:
        name = "+".join(f"{NAMES[each.operation]} {each.algorithm}" for each in stage.steps)
        name += f" of images {images}" if images else ""
        is_merged = any(lane.merged for lane in stage.lanes)
        self.measured.append(f"merged {name}" if is_merged else name)
        return StageMeasurement(
            stage,
            options.allow_tf32,
            latency_us=1.0,
            same_sequential_us=2.0,
            sequential_us=2.0,
            spread_us=0.1,
            workspace_bytes=0,
            source="fake",
            sequential_algorithms=tuple(sequential_algorithms),
        )


def _run(
    backend: FakeBackend,
    configurations: ConfigurationList,
    options: RunOptions | None = None,
    *,
    before: Sequence[Entry] = (),
    should_stop: Callable[[], bool] = lambda: False,
) -> tuple[Outcome, list[Entry]]:
    """Runs with a clock that counts measurements."""
    kept: list[Entry] = []

    def hear(_phase: str, done: int, total: int, _what: str) -> None:
        assert 0 <= done <= total

    run = ProfileRun(
        backend,
        configurations,
        options or RunOptions(),
        before=before,
        keep=kept.append,
        should_stop=should_stop,
        clock=lambda: float(len(backend.measured)),
    )
    return run.run(hear), kept


def _stages(entries: Iterable[Entry]) -> list[StageMeasurement]:
    return [each for each in entries if isinstance(each, StageMeasurement)]


@pytest.mark.parametrize(
    ("configurations", "options", "measured"),
    [
        # The backend's choices first, and the costliest convolution before others.
        (PAIR, {"pair_algorithms": 1}, [
            "large eng0", "small eng0", "large eng1", "small eng1",
            "large eng2", "large GEMM", "small eng2", "small GEMM", "small eng1+large eng1",
        ]),
        # If time is short, stages come before the last algorithms.
        (PAIR, {"pair_algorithms": 1, "budget_seconds": 6}, [
            "large eng0", "small eng0", "large eng1", "small eng1", "small eng1+large eng1",
            "large eng2",
        ]),
        # Convolutions count as often as they occur.
        (ConfigurationList((ListedConvolution(LARGE), ListedConvolution(SMALL, 26))),
         {"algorithms": AlgorithmScope.HEURISTIC},
         ["small eng0", "large eng0", "small eng1", "large eng1"]),
        # Only the given names; ALGO_0 is for gradients.
        (ONE, {"algorithms": ("GEMM", "ALGO_0", "eng2")}, ["small GEMM", "small eng2"]),
        (listed(TO_MERGE[:2], listed_stage((0, 1))), {"algorithms": ("GEMM", "ALGO_0")},
         ["wider GEMM", "small GEMM", "merged small GEMM+wider GEMM"]),
    ],
)  # fmt: skip
def test_measures_the_most_useful_first(
    configurations: ConfigurationList, options: dict[str, Any], measured: list[str]
) -> None:
    backend = FakeBackend()
    _, kept = _run(backend, configurations, RunOptions(**options))
    assert backend.measured == measured
    assert len(kept) == len(measured)


@pytest.mark.parametrize(
    ("configurations", "backend", "pair_algorithms", "measured"),
    [
        # The algorithms take 10 and 20 µs alone; the order is by their sum.
        (PAIR, {}, 2, [
            "small eng1+large eng1", "small eng1+large eng2", "small eng2+large eng1",
            "small eng2+large eng2",
        ]),
        # For one convolution twice, one order is enough.
        (listed((SMALL,), listed_stage(0, 0, images=(0, 0))), {}, 2, [
            "small eng1+small eng1 of images (0, 0)", "small eng1+small eng2 of images (0, 0)",
            "small eng2+small eng2 of images (0, 0)",
        ]),
        # The backend's choices for the wider convolution, by the names that run.
        (MERGED, {"stands_for": {"eng0": "eng2"}}, 3,
         ["merged small eng2+wider eng2", "merged small eng1+wider eng1"]),
        # The other lane has the algorithm that is fastest alone.
        (listed(TO_MERGE, listed_stage((0, 1), 2)), {}, 1,
         ["merged small eng0+wider eng0+large eng1"]),
        # A plan pins algorithms of the wider convolution.
        (listed(TO_MERGE, listed_stage((0, 1), 2, algorithms=("FFT", "FFT", "GEMM"))),
         {"stands_for": {"FFT": "nchw+FFT"}}, 3,
         ["merged small nchw+FFT+wider nchw+FFT+large GEMM"]),
        # In one level, merged lanes come last.
        (listed(TO_MERGE, listed_stage((0, 1)), listed_stage((0, 1), 2), listed_stage(0, 1, 2)),
         {}, 1,
         ["small eng1+wider eng1+large eng1", "merged small eng0+wider eng0+large eng1",
          "merged small eng0+wider eng0"]),
        # The backend refuses a pin that cannot run.
        (listed((SMALL, LARGE), listed_stage(0, 1, algorithms=("FFT", None))),
         {"refuses": ("FFT",)}, 3, ["small FFT+large eng1"]),
        # A wider convolution without algorithms is left out.
        (MERGED, {"lists_nothing_for": (WIDEST,)}, 3, []),
    ],
)  # fmt: skip
def test_chooses_algorithms_for_stages(
    configurations: ConfigurationList,
    backend: dict[str, Any],
    pair_algorithms: int,
    measured: list[str],
) -> None:
    fake = FakeBackend(**backend)
    options = RunOptions(pair_algorithms=pair_algorithms)
    outcome, kept = _run(fake, configurations, options)
    assert [each for each in fake.measured if "+" in each] == measured
    # The wider convolution is not measured alone.
    assert not any(each.startswith("widest") for each in fake.measured)
    assert outcome.end is End.FINISHED
    assert all(describe_convolution(each) in str(outcome.notes) for each in fake.lists_nothing_for)
    # The sequence has the algorithms that are fastest alone.
    assert {name for each in _stages(kept) for name in each.sequential_algorithms} <= {
        fake.stands_for.get("eng1", "eng1")
    }
    # The second run finds everything, by the requested names.
    again = FakeBackend(**backend)
    _run(again, configurations, options, before=kept)
    assert again.measured == []


def test_continues_an_interrupted_run() -> None:
    configurations = listed(
        (SMALL, LARGE), listed_stage(0, 1), listed_stage(0, 1, priorities=(-1, 0))
    )

    def new() -> FakeBackend:
        return FakeBackend(fails=("GEMM",))

    first = new()
    outcome, kept = _run(first, configurations)
    assert outcome == Outcome(End.FINISHED, len(kept) - 2, 2, (), ())
    for cut in range(len(kept) + 1):
        again = new()
        outcome, rest = _run(again, configurations, before=kept[:cut])
        assert again.measured == first.measured[cut:]
        assert outcome.end is End.FINISHED
        assert [*kept[:cut], *rest] == kept


def test_measures_a_stage_again_after_a_faster_algorithm_was_found() -> None:
    configurations = listed((SMALL, LARGE), listed_stage(0, 1, algorithms=("eng0", "eng0")))
    _, kept = _run(FakeBackend(), configurations, RunOptions(algorithms=("eng0",)))
    backend = FakeBackend()
    _, again = _run(backend, configurations, before=kept)
    assert backend.measured[-1] == "small eng0+large eng0"
    assert _stages(again)[-1].sequential_algorithms == ("eng1", "eng1")


def test_measures_algorithms_that_may_round_with_and_without_tf32() -> None:
    before: list[Entry] = []
    for measures, allowed in ((True, True), (True, False), (False, True), (False, False)):
        backend = FakeBackend(rounds_if_allowed=("GEMM",))
        options = RunOptions(("eng1", "GEMM"), measure=MeasureOptions(allow_tf32=allowed))
        before += _run(backend, ONE, options, before=before)[1]
        assert backend.measured[-1:] == ["small GEMM"] * measures
        assert measures or not backend.resolved
    # An engine that does not round is measured once.
    assert [(each.algorithm, each.tf32) for each in before] == [
        ("eng1", False), ("GEMM", True), ("GEMM", False),
    ]  # fmt: skip


def test_ends_when_the_time_is_over_and_says_what_is_left() -> None:
    backend = FakeBackend()
    outcome, kept = _run(backend, BOTH, RunOptions(budget_seconds=3.5))
    assert backend.measured == ["large eng0", "small eng0", "large eng1", "small eng1"]
    assert (outcome.end, outcome.left) == (End.OUT_OF_TIME, ("4 other algorithms",))
    outcome, rest = _run(FakeBackend(), BOTH, before=kept)
    assert (outcome.end, len(rest)) == (End.FINISHED, 4)


def test_ends_after_the_current_measurement_when_told_to_stop() -> None:
    backend = FakeBackend()
    outcome, kept = _run(backend, BOTH, should_stop=lambda: len(backend.measured) == 3)
    assert (outcome.end, len(kept)) == (End.STOPPED, 3)
    assert outcome.left == ("5 other algorithms",)


@pytest.mark.parametrize(
    ("backend", "measured", "failures", "resolved_again"),
    [
        # The name of an entry is not resolved, because that may take a while.
        ({"stands_for": {"eng1": "eng2", "GEMM": "eng2"}}, "eng0 eng2", 0, "eng1 GEMM"),
        ({"refuses": ("GEMM",)}, "eng0 eng1 eng2", 1, ""),
        # An algorithm that failed is not tried under another name.
        ({"stands_for": {"eng2": "FFT", "GEMM": "FFT"}, "fails": ("FFT",)},
         "eng0 eng1 FFT", 1, "eng2 GEMM"),
    ],
)  # fmt: skip
def test_measures_an_algorithm_of_two_names_once(
    backend: dict[str, Any], measured: str, failures: int, resolved_again: str
) -> None:
    first, again = FakeBackend(**backend), FakeBackend(**backend)
    outcome, kept = _run(first, ONE, RunOptions(budget_seconds=9))
    assert first.measured == [f"small {name}" for name in measured.split()]
    assert outcome == Outcome(End.FINISHED, len(kept) - failures, failures, (), ())
    outcome, _ = _run(again, ONE, before=kept)
    assert (again.measured, outcome.end) == ([], End.FINISHED)
    assert again.resolved == [f"small {name}" for name in resolved_again.split()]


@pytest.mark.parametrize(
    ("backend", "measured", "end", "kept_count"),
    [
        # eng0 runs again as a check, which is not kept.
        ({"breaks": ("eng1",)}, "eng0 eng1 eng0", End.DEVICE_LOST, 2),
        ({"fails": ("eng1",)}, "eng0 eng1 eng0 eng2 GEMM", End.FINISHED, 4),
        ({"fails": ("eng0",)}, "eng0", End.DEVICE_LOST, 1),
    ],
)
def test_ends_if_a_failure_breaks_the_device(
    backend: dict[str, Any], measured: str, end: End, kept_count: int
) -> None:
    fake = FakeBackend(fails_kind=FailureKind.FAILED, **backend)
    outcome, kept = _run(fake, ONE)
    assert fake.measured == [f"small {name}" for name in measured.split()]
    assert (outcome.end, len(kept), outcome.left) == (end, kept_count, ())
    # A new process continues after the algorithm that broke it.
    again = FakeBackend()
    outcome, _ = _run(again, ONE, before=kept)
    assert again.measured == [f"small {name}" for name in ALL[kept_count:]]
    assert outcome.end is End.FINISHED


def test_says_which_convolutions_have_no_algorithm() -> None:
    gradient = dataclasses.replace(
        SMALL, op="Conv2DBackpropInput", kind=ConvolutionKind.BACKWARD_INPUT
    )
    outcome, kept = _run(FakeBackend(), listed((gradient, SMALL), listed_stage(0, 1)))
    assert outcome.end is End.FINISHED
    assert {each.configuration for each in kept} == {SMALL}
    [note] = outcome.notes
    assert note.startswith("no algorithm for backward-input 1x8x8x3")
    assert note.endswith("Expected a forward convolution.")


def test_reports_the_progress_of_each_phase() -> None:
    said: list[tuple[str, int, int, str]] = []
    options = RunOptions(pair_algorithms=1, budget_seconds=100)
    run = ProfileRun(FakeBackend(), PAIR, options, clock=lambda: 0.0)
    run.run(lambda *now: said.append(now))
    ends = [now[:3] for now in said if now[1] == now[2]]
    # Other algorithms take two rounds: those that the backend considers, then all.
    assert set(ends) == {(each.value, n, n) for each, n in zip(Phase, (2, 4, 1), strict=True)}
    assert sum("s left now" in what for *_, what in said) == 9
    assert all(what.startswith("at most 100 s left") for *_, what in said)
