"""Plan files: versioned JSON, one file for the plans of several graphs.

{
  "graphs": [
    {
      "fingerprint": "8c5ad1e0a2f14b07",
      "convolution_count": 2,
      "stages": [
        {
          "lanes": [
            [{"node": "left/Conv2D", "algorithm": "eng4_k24=15"}],
            [{"node": "right/Conv2D", "algorithm": null}]
          ],
          "why": "planned: 21.0 us measured against 30.5 us one after another",
          "lane_options": [
            {"priority": -1, "sm_count": 64, "merged": false},
            {"priority": 0, "sm_count": 0, "merged": false}
          ],
          "prediction": {"latency_us": 21.0, "source": "measured", …},
          "explanation": {"lanes": […], "alternatives": […]}
        }
      ],
      "batch_size": 8,
      "prediction": {"latency_us": 51.5, "sequential_us": 61.0, "peak_bytes": 1048576, …},
      "step": "inference"
    }
  ],
  "format": "tf_interop.plan",
  "version": 1,
  "made_with": {"tensorflow": "2.21.0"}
}
"""

from __future__ import annotations

from typing import Any

from tf_interop.algorithm import check_algorithm
from tf_interop.errors import PlanError
from tf_interop.plan.types import (
    PLAN_FORMAT,
    PLAN_VERSION,
    BatchSchedule,
    GraphPlan,
    PinnedConvolution,
    Plan,
    PlannedStage,
)
from tf_interop.versioned_file import (
    PathLike,
    VersionedFormat,
    load_versioned,
    save_versioned,
    versioned_schema,
)


def load_plan(path: PathLike) -> Plan:
    """Reads a plan file.

    Legal is a file that names each fingerprint once for a batch size, each node of a graph in one
    place, at least one lane in each stage and one convolution in each lane, options for all lanes
    of a stage or for none, two convolutions or more with one algorithm in a merged lane, algorithms
    that a runner knows, and no more memory than its budget.
    Whether the stages suit a graph is for `check_stages` to say.

    Raises:
        PlanError: there is no such file, it is not whole, of another format or version, or not
            legal. Says where in the file, what was expected and what to do.
    """
    return load_versioned(path, _PLAN_FILE)


def save_plan(plan: Plan, path: PathLike) -> None:
    """Writes a plan file, atomically; equal plans give equal bytes.

    Raises:
        PlanError: the plan is not legal (see `load_plan`), or the file cannot be written.
    """
    save_versioned(plan, path, _PLAN_FILE)


def plan_schema() -> dict[str, Any]:
    """JSON schema (2020-12) of plan files.

    It states types, fields and lengths. Algorithm names, the uniqueness of nodes, and that there
    are as many options and explanations as lanes are beyond it, and so is the budget.
    """
    return versioned_schema(_PLAN_FILE)


def _check_plan(plan: Plan) -> None:
    seen: dict[tuple[str, int | None], int] = {}
    for index, graph in enumerate(plan.graphs):
        first = seen.setdefault((graph.fingerprint, graph.batch_size), index)
        if first != index:
            batch = "" if graph.batch_size is None else f" with batch size {graph.batch_size}"
            raise ValueError(
                f"Expected each graph once, got fingerprint {graph.fingerprint!r}{batch} of "
                f"`$.graphs[{first}]` again at `$.graphs[{index}].fingerprint`"
            )
        _check_graph_plan(graph, f"$.graphs[{index}]")


def _check_graph_plan(graph: GraphPlan, place: str) -> None:
    places: dict[str, str] = {}
    for stage_number, stage in enumerate(graph.stages):
        try:
            stage.check_lane_options()
        except ValueError as error:
            raise ValueError(f"{error} at `{place}.stages[{stage_number}].lane_options`") from error
        _check_merged_lanes(stage, f"{place}.stages[{stage_number}].lanes")
        _check_schedules(stage, f"{place}.stages[{stage_number}].schedules")
        _check_explanation(stage, f"{place}.stages[{stage_number}].explanation")
        for lane_number, lane in enumerate(stage.lanes):
            for index, pinned in enumerate(lane):
                here = f"{place}.stages[{stage_number}].lanes[{lane_number}][{index}]"
                first = places.setdefault(pinned.node, here)
                if first != here:
                    raise ValueError(
                        f"Expected each node once, got {pinned.node!r} of `{first}` again at "
                        f"`{here}.node`"
                    )
                _check_pin(pinned, here)
    if len(places) > graph.convolution_count:
        raise ValueError(
            f"Expected at most {graph.convolution_count} nodes in the stages, as many as the graph "
            f"has convolutions, got {len(places)} at `{place}.stages`"
        )
    for index, alone in enumerate(graph.alone):
        here = f"{place}.alone[{index}]"
        first = places.setdefault(alone.node, here)
        if first != here:
            raise ValueError(
                f"Expected each node once, got {alone.node!r} of `{first}` again at `{here}.node`"
            )
        if alone.before_stage > len(graph.stages):
            raise ValueError(
                f"Expected at most {len(graph.stages)}, the number of stages, got "
                f"{alone.before_stage} at `{here}.before_stage`"
            )
    _check_memory(graph, place)


def _check_merged_lanes(run: PlannedStage | BatchSchedule, place: str) -> None:
    for number, (lane, options) in enumerate(zip(run.lanes, run.lane_options, strict=False)):
        if not options.merged:
            continue
        if len(lane) < 2:
            raise ValueError(
                f"Expected two or more convolutions in a merged lane, got {len(lane)} at "
                f"`{place}[{number}]`"
            )
        algorithms = [pinned.algorithm for pinned in lane]
        if len(set(algorithms)) > 1:
            raise ValueError(
                f"Expected one algorithm in a merged lane, that of the wider convolution, got "
                f"{algorithms} at `{place}[{number}]`"
            )


def _check_pin(pinned: PinnedConvolution, place: str) -> None:
    if pinned.algorithm is None:
        return
    try:
        check_algorithm(pinned.algorithm)
    except ValueError as error:
        raise ValueError(f"{error} at `{place}.algorithm`") from error


def _check_schedules(stage: PlannedStage, place: str) -> None:
    try:
        stage.check_schedules()
    except ValueError as error:
        raise ValueError(f"{error} at `{place}`") from error
    for number, schedule in enumerate(stage.schedules):
        _check_merged_lanes(schedule, f"{place}[{number}].lanes")
        for lane_number, lane in enumerate(schedule.lanes):
            for index, pinned in enumerate(lane):
                _check_pin(pinned, f"{place}[{number}].lanes[{lane_number}][{index}]")


def _check_explanation(stage: PlannedStage, place: str) -> None:
    if stage.explanation is None:
        return
    lanes = len(stage.lanes)
    if len(stage.explanation.lanes) != lanes:
        raise ValueError(
            f"Expected an entry for each of {lanes} lanes, got {len(stage.explanation.lanes)} at "
            f"`{place}.lanes`"
        )
    convolutions = len(stage.convolutions)
    for index, alternative in enumerate(stage.explanation.alternatives):
        here = f"{place}.alternatives[{index}]"
        if len(alternative.algorithms) != convolutions:
            raise ValueError(
                f"Expected an algorithm for each of {convolutions} convolutions, got "
                f"{len(alternative.algorithms)} at `{here}.algorithms`"
            )
        if len(alternative.lanes) not in (0, convolutions):
            raise ValueError(
                f"Expected a lane for none or all of {convolutions} convolutions, got "
                f"{len(alternative.lanes)} at `{here}.lanes`"
            )


def _check_memory(graph: GraphPlan, place: str) -> None:
    budget = None if graph.prediction is None else graph.prediction.memory_budget_bytes
    if budget is None:
        return
    for number, stage in enumerate(graph.stages):
        if stage.prediction is not None and stage.prediction.peak_bytes > budget:
            raise ValueError(
                f"Expected no more than the budget of {budget} bytes, got "
                f"{stage.prediction.peak_bytes} at `{place}.stages[{number}].prediction.peak_bytes`"
            )


_PLAN_FILE = VersionedFormat(
    noun="plan",
    name=PLAN_FORMAT,
    version=PLAN_VERSION,
    value_type=Plan,
    check=_check_plan,
    error=PlanError,
    remedy="Correct the file, or plan the graph anew.",
)
