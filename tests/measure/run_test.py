"""In which order a list is measured, what is not measured again, and how a run ends."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from convolution_values import TINY

from tf_interop.convolution import ConvolutionConfiguration, ConvolutionKind
from tf_interop.measure.backend import (
    AlgorithmList,
    AlgorithmScope,
    MeasureOptions,
    ResolvedAlgorithm,
)
from tf_interop.measure.jobs import Phase, RunOptions
from tf_interop.measure.run import End, Outcome, ProfileRun, Progress
from tf_interop.profile.entries import (
    AlgorithmFailure,
    AlgorithmMeasurement,
    Entry,
    FailureKind,
    StageMeasurement,
)
from tf_interop.profile.tables import describe_convolution
from tf_interop.profile.worklist import (
    ConfigurationList,
    ListedConvolution,
    ListedStage,
)
from tf_interop.stage import Lane, Stage, Step

SMALL = dataclasses.replace(TINY, filter_shape=(1, 1, 3, 4))
LARGE = dataclasses.replace(SMALL, filter_shape=(5, 5, 3, 4))
HALF = dataclasses.replace(SMALL, dtype="float16")
WIDER = dataclasses.replace(SMALL, filter_shape=(1, 1, 3, 6), output_shape=(1, 8, 8, 6))
# The two of them merged.
WIDEST = dataclasses.replace(SMALL, filter_shape=(1, 1, 3, 10), output_shape=(1, 8, 8, 10))
BOTH = (ListedConvolution(SMALL), ListedConvolution(LARGE))


def listed_stage(*lanes: int | tuple[int, ...], **of_lanes: Sequence[Any]) -> ListedStage:
    """A listed stage; its first steps have `algorithms`, and several of a lane are merged."""
    names = iter(of_lanes.get("algorithms", ()))
    counts = of_lanes.get("sm_counts", (0,) * len(lanes))
    steps = [(each,) if isinstance(each, int) else each for each in lanes]
    return ListedStage(
        Stage(
            tuple(
                Lane(
                    tuple(Step(place, next(names, None)) for place in lane),
                    sm_count=count,
                    merged=len(lane) > 1,
                )
                for lane, count in zip(steps, counts, strict=True)
            )
        )
    )


PAIR = listed_stage(0, 1)

# Best first; what is faster alone is not what the backend thinks best.
CONSIDERED = ("eng0", "eng1")
ALL = (*CONSIDERED, "eng2", "GEMM")
LATENCIES = {"eng0": 30.0, "eng1": 10.0, "eng2": 20.0, "GEMM": 40.0}


class FakeBackend:
    """Has four algorithms of known times, of which the first rounds to TF32."""

    def __init__(self) -> None:
        self.measured: list[str] = []
        self.resolved: list[str] = []
        # What a name stands for; names without an entry stand for themselves.
        self.stands_for: dict[str, str] = {}
        # What rounds where it may.
        self.rounds_if_allowed: set[str] = set()
        self.refuses: set[str] = set()
        self.fails_kind = FailureKind.OUT_OF_MEMORY
        # After a failure of an algorithm of that name nothing works any more.
        self.breaks: set[str] = set()
        self.fails: set[str] = set()
        self.granted_sm_counts: tuple[int, ...] = ()
        self.before_each: Callable[[], None] = lambda: None
        self.lists_nothing_for: set[ConvolutionConfiguration] = set()

    def list_algorithms(
        self,
        configuration: ConvolutionConfiguration,
        scope: AlgorithmScope = AlgorithmScope.ALL,
        *,
        allow_tf32: bool = True,
    ) -> AlgorithmList:
        if configuration.kind is not ConvolutionKind.FORWARD:
            return AlgorithmList((), "Expected a forward convolution.")
        if configuration in self.lists_nothing_for:
            return AlgorithmList((), "Expected memory, got none.")
        names = CONSIDERED if scope is AlgorithmScope.HEURISTIC else ALL
        return AlgorithmList(tuple(n for n in names if allow_tf32 or n != "eng0"), None)

    def resolve_algorithm(
        self,
        configuration: ConvolutionConfiguration,
        algorithm: str,
        options: MeasureOptions,
    ) -> ResolvedAlgorithm | AlgorithmFailure:
        self.resolved.append(f"{_name(configuration)} {algorithm}")
        if algorithm in self.refuses:
            return AlgorithmFailure(
                configuration, algorithm, options.allow_tf32, FailureKind.UNSUPPORTED, "no", "fake"
            )
        name = self.stands_for.get(algorithm, algorithm)
        return ResolvedAlgorithm(name, self._rounds(configuration, name, options))

    def _rounds(
        self, configuration: ConvolutionConfiguration, name: str, options: MeasureOptions
    ) -> bool:
        may_round = name == "eng0" or (name in self.rounds_if_allowed and options.allow_tf32)
        return configuration.dtype == "float32" and may_round

    def measure_algorithm(
        self,
        configuration: ConvolutionConfiguration,
        algorithm: str,
        options: MeasureOptions,
    ) -> AlgorithmMeasurement | AlgorithmFailure:
        self.before_each()
        assert algorithm not in self.refuses
        algorithm = self.stands_for.get(algorithm, algorithm)
        self.measured.append(f"{_name(configuration)} {algorithm}")
        if algorithm in self.breaks:
            self.fails |= set(LATENCIES)
        if algorithm in self.fails:
            return AlgorithmFailure(
                configuration, algorithm, options.allow_tf32, self.fails_kind, "no", "fake"
            )
        rounds = self._rounds(configuration, algorithm, options)
        return AlgorithmMeasurement(
            configuration, algorithm, rounds, LATENCIES[algorithm], 0.1, 0, None, True, (), "fake"
        )

    def measure_stage(
        self,
        stage: Stage[ConvolutionConfiguration],
        options: MeasureOptions,
        *,
        sequential_algorithms: Sequence[str | None] = (),
    ) -> StageMeasurement:
        self.before_each()
        name = "+".join(f"{_name(each.operation)} {each.algorithm}" for each in stage.steps)
        is_merged = any(lane.merged for lane in stage.lanes)
        self.measured.append(f"merged {name}" if is_merged else name)
        return StageMeasurement(
            stage=stage,
            tf32=options.allow_tf32,
            latency_us=1.0,
            same_sequential_us=2.0,
            sequential_us=2.0,
            spread_us=0.1,
            workspace_bytes=0,
            source="fake",
            sequential_algorithms=tuple(sequential_algorithms),
            granted_sm_counts=self.granted_sm_counts,
        )


def _hear(now: Progress) -> None:
    assert 0 <= now.done <= now.total
    assert (now.done > 0) if now.is_end else (now.done < now.total)


def _name(configuration: ConvolutionConfiguration) -> str:
    names = {SMALL: "small", LARGE: "large", HALF: "half", WIDER: "wider", WIDEST: "widest"}
    return names[configuration]


def _run(
    backend: FakeBackend,
    configurations: ConfigurationList,
    options: RunOptions | None = None,
    *,
    before: Sequence[Entry] = (),
    should_stop: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = lambda: 0.0,
) -> tuple[Outcome, list[Entry]]:
    kept: list[Entry] = []
    run = ProfileRun(
        backend,
        configurations,
        options or RunOptions(),
        before=before,
        keep=kept.append,
        should_stop=should_stop,
        clock=clock,
    )
    return run.run(_hear), kept


def test_measures_own_choices_first_and_the_costliest_convolution_before_others() -> None:
    backend = FakeBackend()
    outcome, kept = _run(backend, ConfigurationList(BOTH, (PAIR,)), RunOptions(pair_algorithms=1))
    assert backend.measured == [
        "large eng0", "small eng0",
        "large eng1", "small eng1",
        "large eng2", "large GEMM", "small eng2", "small GEMM",
        "small eng1+large eng1",
    ]  # fmt: skip
    assert outcome == Outcome(End.FINISHED, len(kept), 0, (), ())


def test_a_convolution_that_occurs_often_counts_as_often() -> None:
    backend = FakeBackend()
    listed = (ListedConvolution(LARGE), ListedConvolution(SMALL, 26))
    _run(backend, ConfigurationList(listed), RunOptions(AlgorithmScope.HEURISTIC))
    assert backend.measured == ["small eng0", "large eng0", "small eng1", "large eng1"]


def test_pairs_are_measured_with_combinations_of_what_is_fastest_alone() -> None:
    backend = FakeBackend()
    _run(backend, ConfigurationList(BOTH, (PAIR,)), RunOptions(pair_algorithms=2))
    # 10 and 20 us alone; that of both fastest first, then by time.
    assert [each for each in backend.measured if "+" in each] == [
        "small eng1+large eng1", "small eng1+large eng2", "small eng2+large eng1",
        "small eng2+large eng2",
    ]  # fmt: skip


def test_stages_of_one_convolution_twice_are_not_measured_in_both_orders() -> None:
    backend = FakeBackend()
    twice = ConfigurationList(BOTH[:1], (listed_stage(0, 0),))
    _run(backend, twice, RunOptions(pair_algorithms=2))
    assert [each for each in backend.measured if "+" in each] == [
        "small eng1+small eng1", "small eng1+small eng2", "small eng2+small eng2",
    ]  # fmt: skip


def test_stages_are_compared_with_what_is_fastest_alone() -> None:
    pinned = ListedStage(Stage((Lane((Step(0, "GEMM"), Step(1)), priority=-1),)))
    _, kept = _run(FakeBackend(), ConfigurationList(BOTH, (pinned,)))
    [stage] = [each for each in kept if isinstance(each, StageMeasurement)]
    assert stage.stage == pinned.stage.map((SMALL, LARGE).__getitem__).with_algorithms(
        ("GEMM", "eng1")
    )
    assert stage.sequential_algorithms == ("eng1", "eng1")


TO_MERGE = (ListedConvolution(SMALL), ListedConvolution(WIDER), ListedConvolution(LARGE))


def test_what_is_merged_is_measured_with_what_the_backend_would_choose_for_the_wider_one() -> None:
    backend = FakeBackend()
    backend.stands_for["eng0"] = "eng2"
    listed = ConfigurationList(TO_MERGE, (listed_stage((0, 1)),))
    _, kept = _run(backend, listed)
    # That of the backend's first choice first, by the name of what runs.
    assert [each for each in backend.measured if "+" in each] == [
        "merged small eng2+wider eng2", "merged small eng1+wider eng1",
    ]  # fmt: skip
    assert backend.resolved[-2:] == ["widest eng0", "widest eng1"]
    assert not any(each.startswith("widest") for each in backend.measured)
    stages = [each for each in kept if isinstance(each, StageMeasurement)]
    # Against each by itself with what is fastest alone.
    assert stages[0].sequential_algorithms == ("eng1", "eng1")


def test_lanes_beside_what_is_merged_run_with_what_is_fastest_alone() -> None:
    backend = FakeBackend()
    stage = listed_stage((0, 1), 2)
    _run(backend, ConfigurationList(TO_MERGE, (stage,)), RunOptions(pair_algorithms=1))
    assert backend.measured[-1] == "merged small eng0+wider eng0+large eng1"


def test_a_plan_pins_algorithms_of_the_wider_convolution() -> None:
    backend = FakeBackend()
    backend.stands_for["FFT"] = "nchw+FFT"
    stage = listed_stage((0, 1), 2, algorithms=("FFT", "FFT", "GEMM"))
    _run(backend, ConfigurationList(TO_MERGE, (stage,)))
    assert backend.measured[-1] == "merged small nchw+FFT+wider nchw+FFT+large GEMM"


def test_named_algorithms_are_those_of_the_wider_convolution_too() -> None:
    backend = FakeBackend()
    listed = ConfigurationList(TO_MERGE[:2], (listed_stage((0, 1)),))
    _run(backend, listed, RunOptions(algorithms=("GEMM", "ALGO_0")))
    assert backend.measured == ["wider GEMM", "small GEMM", "merged small GEMM+wider GEMM"]


def test_of_one_level_what_is_not_merged_comes_first() -> None:
    backend = FakeBackend()
    stages = (
        listed_stage((0, 1)),
        listed_stage((0, 1), 2),
        listed_stage(0, 1, 2),
    )
    _run(backend, ConfigurationList(TO_MERGE, stages), RunOptions(pair_algorithms=1))
    assert backend.measured[-3:] == [
        "small eng1+wider eng1+large eng1",
        "merged small eng0+wider eng0+large eng1",
        "merged small eng0+wider eng0",
    ]


def test_what_was_measured_merged_is_not_measured_again() -> None:
    listed = ConfigurationList(TO_MERGE, (listed_stage((0, 1)),))
    _, kept = _run(FakeBackend(), listed)
    again = FakeBackend()
    _run(again, listed, before=kept)
    assert again.measured == []
    # As two lanes it is another stage.
    apart = ConfigurationList(TO_MERGE, (listed_stage(0, 1),))
    _run(again, apart, RunOptions(pair_algorithms=1), before=kept)
    assert again.measured == ["small eng1+wider eng1"]


def test_a_wider_convolution_without_algorithms_is_noted_and_left_out() -> None:
    backend = FakeBackend()
    backend.lists_nothing_for.add(WIDEST)
    listed = ConfigurationList(TO_MERGE[:2], (listed_stage((0, 1)),))
    outcome, _ = _run(backend, listed)
    assert not any("+" in each for each in backend.measured)
    assert any(describe_convolution(WIDEST) in note for note in outcome.notes)
    assert outcome.end is End.FINISHED


def test_named_algorithms_alone_are_measured() -> None:
    backend = FakeBackend()
    options = RunOptions(algorithms=("GEMM", "ALGO_0", "eng2"))
    _run(backend, ConfigurationList(BOTH[:1]), options)
    # ALGO_0 is for gradients.
    assert backend.measured == ["small GEMM", "small eng2"]


def test_what_was_measured_is_not_measured_again() -> None:
    listed = ConfigurationList(BOTH, (PAIR, listed_stage(0, 1, sm_counts=(60, 60))))
    first = FakeBackend()
    first.fails = {"GEMM"}
    first.granted_sm_counts = (64, 56)
    outcome, kept = _run(first, listed)
    assert outcome.failure_count == 2
    for cut in range(len(kept) + 1):
        again = FakeBackend()
        again.fails, again.granted_sm_counts = first.fails, first.granted_sm_counts
        outcome, rest = _run(again, listed, before=kept[:cut])
        assert again.measured == first.measured[cut:]
        assert outcome.end is End.FINISHED
        assert [*kept[:cut], *rest] == kept


def test_a_stage_is_measured_again_where_a_faster_algorithm_was_found_since() -> None:
    listed = ConfigurationList(BOTH, (listed_stage(0, 1, algorithms=("eng0", "eng0")),))
    heuristic = RunOptions(algorithms=("eng0",))
    _, kept = _run(FakeBackend(), listed, heuristic)
    backend = FakeBackend()
    _, again = _run(backend, listed, before=kept)
    assert backend.measured[-1] == "small eng0+large eng0"
    stage = again[-1]
    assert isinstance(stage, StageMeasurement)
    assert stage.sequential_algorithms == ("eng1", "eng1")


def test_without_tf32_only_what_rounds_is_left_out_and_halves_are_measured_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(LATENCIES, "eng0", 5.0)
    backend = FakeBackend()
    listed = (ListedConvolution(SMALL), ListedConvolution(HALF))
    stages = (listed_stage(0, 0), listed_stage(1, 1))
    options = RunOptions(AlgorithmScope.HEURISTIC, tf32=(True, False), pair_algorithms=1)
    _, kept = _run(backend, ConfigurationList(listed, stages), options)
    # The list without TF32 has eng1 alone, which was found not to round; half has no TF32.
    assert sorted(backend.measured[:4]) == ["half eng0", "half eng1", "small eng0", "small eng1"]
    assert backend.measured[4:] == [
        "small eng0+small eng0", "half eng0+half eng0", "small eng1+small eng1",
    ]  # fmt: skip
    assert [each.tf32 for each in kept[4:]] == [True, True, False]


def test_ends_when_the_time_is_over_and_says_what_is_left() -> None:
    backend = FakeBackend()
    now = 0.0

    def pass_a_second() -> None:
        nonlocal now
        now += 1

    backend.before_each = pass_a_second
    options = RunOptions(budget_seconds=3.5)
    outcome, kept = _run(backend, ConfigurationList(BOTH), options, clock=lambda: now)
    assert backend.measured == ["large eng0", "small eng0", "large eng1", "small eng1"]
    assert outcome.end is End.OUT_OF_TIME
    assert outcome.left == ("4 other algorithms",)

    outcome, rest = _run(backend, ConfigurationList(BOTH), before=kept)
    assert (outcome.end, len(rest)) == (End.FINISHED, 4)


def test_with_little_time_stages_come_before_the_last_algorithms() -> None:
    backend = FakeBackend()
    now = 0.0

    def pass_a_second() -> None:
        nonlocal now
        now += 1

    backend.before_each = pass_a_second
    options = RunOptions(budget_seconds=6, pair_algorithms=1)
    _run(backend, ConfigurationList(BOTH, (PAIR,)), options, clock=lambda: now)
    assert backend.measured == [
        "large eng0", "small eng0", "large eng1", "small eng1", "small eng1+large eng1",
        "large eng2",
    ]  # fmt: skip


def test_ends_after_the_measurement_in_hand_when_told_to_stop() -> None:
    backend = FakeBackend()
    outcome, kept = _run(
        backend, ConfigurationList(BOTH), should_stop=lambda: len(backend.measured) == 3
    )
    assert (outcome.end, len(kept)) == (End.STOPPED, 3)
    assert outcome.left == ("5 other algorithms",)


def test_one_algorithm_of_two_names_is_measured_once() -> None:
    listed = ConfigurationList(BOTH[:1])
    backend = FakeBackend()
    backend.stands_for = {"eng1": "eng2", "GEMM": "eng2"}
    options = RunOptions(budget_seconds=1)
    outcome, kept = _run(backend, listed, options)
    assert backend.measured == ["small eng0", "small eng2"]
    assert outcome == Outcome(End.FINISHED, 2, 0, (), ())

    again = FakeBackend()
    again.stands_for = backend.stands_for
    outcome, _ = _run(again, listed, options, before=kept)
    assert again.measured == []
    assert outcome.end is End.FINISHED
    # Resolving may take a while; what is known by its own name need not be.
    assert again.resolved == ["small eng1", "small GEMM"]


def test_a_name_that_cannot_run_fails_under_that_name_and_is_not_measured() -> None:
    listed = ConfigurationList(BOTH[:1])
    backend = FakeBackend()
    backend.refuses = {"GEMM"}
    outcome, kept = _run(backend, listed)
    assert backend.measured == ["small eng0", "small eng1", "small eng2"]
    assert outcome.failure_count == 1
    assert isinstance(kept[-1], AlgorithmFailure)
    assert kept[-1].algorithm == "GEMM"
    again = FakeBackend()
    _run(again, listed, before=kept)
    assert again.resolved == []


def test_what_fails_while_it_runs_is_not_tried_under_another_name() -> None:
    listed = ConfigurationList(BOTH[:1])
    backend = FakeBackend()
    backend.stands_for = {"eng2": "FFT", "GEMM": "FFT"}
    backend.fails = {"FFT"}
    outcome, kept = _run(backend, listed)
    assert backend.measured == ["small eng0", "small eng1", "small FFT"]
    assert (outcome.failure_count, len(kept)) == (1, 3)


def test_ends_where_a_failure_leaves_the_device_broken() -> None:
    listed = ConfigurationList(BOTH[:1])
    backend = FakeBackend()
    backend.fails_kind = FailureKind.FAILED
    backend.breaks = {"eng1"}
    outcome, kept = _run(backend, listed)
    # eng0 again, to see whether that still works.
    assert backend.measured == ["small eng0", "small eng1", "small eng0"]
    assert (outcome.end, len(kept)) == (End.DEVICE_LOST, 2)
    assert outcome.left == ()

    # In a new process, it goes on behind what broke it.
    again = FakeBackend()
    outcome, _ = _run(again, listed, before=kept)
    assert again.measured == ["small eng2", "small GEMM"]
    assert outcome.end is End.FINISHED


def test_goes_on_where_a_failure_leaves_the_device_as_it_was() -> None:
    backend = FakeBackend()
    backend.fails_kind = FailureKind.FAILED
    backend.fails = {"eng1"}
    outcome, kept = _run(backend, ConfigurationList(BOTH[:1]))
    assert backend.measured == [
        "small eng0", "small eng1", "small eng0", "small eng2", "small GEMM",
    ]  # fmt: skip
    # What was run to see whether it works is not kept.
    assert (outcome.end, len(kept), outcome.measured_count) == (End.FINISHED, 4, 3)


def test_ends_where_the_first_of_all_fails() -> None:
    backend = FakeBackend()
    backend.fails_kind = FailureKind.FAILED
    backend.fails = {"eng0"}
    outcome, kept = _run(backend, ConfigurationList(BOTH[:1]))
    assert (outcome.end, len(kept)) == (End.DEVICE_LOST, 1)


def test_a_stage_is_told_by_what_its_pins_stand_for() -> None:
    pinned = listed_stage(0, 1, algorithms=("GEMM", None))
    listed = ConfigurationList(BOTH, (pinned,))
    backend = FakeBackend()
    backend.stands_for = {"GEMM": "eng2"}
    _, kept = _run(backend, listed)
    assert backend.measured[-1] == "small eng2+large eng1"
    again = FakeBackend()
    again.stands_for = backend.stands_for
    _run(again, listed, before=kept)
    assert again.measured == []


def test_a_stage_with_a_pin_that_cannot_run_is_left_to_the_backend_to_refuse() -> None:
    pinned = listed_stage(0, 1, algorithms=("FFT", None))
    backend = FakeBackend()
    backend.refuses = {"FFT"}
    _run(backend, ConfigurationList(BOTH, (pinned,)))
    assert backend.measured[-1] == "small FFT+large eng1"


@pytest.mark.parametrize("tf32", [(True, False), (False, True)])
def test_what_rounds_where_it_may_is_measured_with_and_without_tf32(
    tf32: tuple[bool, bool],
) -> None:
    listed = ConfigurationList(BOTH[:1])
    before: list[Entry] = []
    for allowed in tf32:
        backend = FakeBackend()
        backend.rounds_if_allowed = {"GEMM"}
        options = RunOptions(algorithms=("eng1", "GEMM"), tf32=(allowed,))
        _, kept = _run(backend, listed, options, before=before)
        before += kept
        assert backend.measured[-1] == "small GEMM"
    # An engine that does not round is not measured twice.
    assert [(each.algorithm, each.tf32) for each in before] == [  # type: ignore[union-attr]
        ("eng1", False), ("GEMM", tf32[0]), ("GEMM", tf32[1]),
    ]  # fmt: skip
    for allowed in tf32:
        backend = FakeBackend()
        backend.rounds_if_allowed = {"GEMM"}
        options = RunOptions(algorithms=("eng1", "GEMM"), tf32=(allowed,))
        _run(backend, listed, options, before=before)
        assert (backend.measured, backend.resolved) == ([], [])


def test_says_which_convolutions_have_no_algorithm() -> None:
    gradient = dataclasses.replace(
        SMALL, op="Conv2DBackpropInput", kind=ConvolutionKind.BACKWARD_INPUT
    )
    listed = (ListedConvolution(gradient), ListedConvolution(SMALL))
    stage = listed_stage(0, 1)
    outcome, kept = _run(FakeBackend(), ConfigurationList(listed, (stage,)))
    assert outcome.end is End.FINISHED
    assert {each.configuration for each in kept} == {SMALL}  # type: ignore[union-attr]
    [note] = outcome.notes
    assert note.startswith("no algorithm for backward-input 1x8x8x3")
    assert note.endswith("Expected a forward convolution.")


def test_says_of_each_phase_how_far_it_came() -> None:
    said: list[Progress] = []
    options = RunOptions(pair_algorithms=1)
    ProfileRun(FakeBackend(), ConfigurationList(BOTH, (PAIR,)), options).run(said.append)
    assert [(now.phase, now.done, now.total) for now in said if now.is_end] == [
        (phase, 2, 2) for phase in Phase if phase is not Phase.STAGES
    ] + [(Phase.STAGES, 1, 1)]
    assert sum(bool(now.what) for now in said) == 9
