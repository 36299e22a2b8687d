"""Plan files: versioned JSON, one file for the plans of several graphs.

{
  "graphs": [
    {
      "fingerprint": "8c5ad1e0a2f14b07",
      "convolution_count": 2,
      "stages": [
        {
          "stage": {
            "lanes": [
              {
                "steps": [{"operation": "left/Conv2D", "algorithm": "eng4_k24=15"}],
                "priority": -1,
                "sm_count": 64,
                "merged": false
              },
              {"steps": [{"operation": "right/Conv2D", "algorithm": null}], …}
            ]
          },
          "why": "planned: 21.0 us measured against 30.5 us one after another",
          "prediction": {"latency_us": 21.0, "source": "measured", …},
          "explanation": {"lanes": […], "alternatives": […]}
        }
      ],
      "batch_size": 8,
      "prediction": {"latency_us": 51.5, "sequential_us": 61.0, "peak_bytes": 1048576, …},
      "mode": "inference"
    }
  ],
  "format": "tf_interop.plan",
  "version": 1,
  "made_with": {"tensorflow": "2.21.0"}
}
"""

from __future__ import annotations

from tf_interop.algorithm import check_algorithm
from tf_interop.errors import PlanError
from tf_interop.planning.types import GraphPlan, Plan
from tf_interop.versioned_file import VersionedFormat


def _check_plan(plan: Plan) -> None:
    """Checks what the types allow and no plan may be.

    A plan names each fingerprint once for a batch size and each node of a graph once; its stages
    are valid (`PlannedStage.validate`) with algorithms that a runner knows; and it needs no more
    memory than its budget. Whether the stages suit a graph is for `check_stages` to say.
    """
    seen: dict[tuple[str, int | None], int] = {}
    for index, graph in enumerate(plan.graphs):
        first = seen.setdefault((graph.fingerprint, graph.batch_size), index)
        if first != index:
            raise ValueError(
                f"Expected each graph once for a batch size, got fingerprint {graph.fingerprint!r} "
                f"of `$.graphs[{first}]` again at `$.graphs[{index}].fingerprint`"
            )
        _check_graph(graph, f"$.graphs[{index}]")


def _check_graph(graph: GraphPlan, place: str) -> None:
    seen: set[str] = set()

    def add(name: str, here: str) -> None:
        if name in seen:
            raise ValueError(f"Expected each node once, got {name!r} again at `{here}`")
        seen.add(name)

    for number, stage in enumerate(graph.stages):
        here = f"{place}.stages[{number}]"
        for name in stage.nodes:
            add(name, f"{here}.stage")
        try:
            stage.validate()
            for each in (stage.stage, *(schedule.stage for schedule in stage.schedules)):
                for step in each.steps:
                    if step.algorithm is not None:
                        check_algorithm(step.algorithm)
        except ValueError as error:
            raise ValueError(f"{error} in `{here}`") from error
        budget = None if graph.prediction is None else graph.prediction.memory_budget_bytes
        if stage.prediction and budget is not None and stage.prediction.peak_bytes > budget:
            raise ValueError(
                f"Expected no more than the budget of {budget} bytes, got "
                f"{stage.prediction.peak_bytes} at `{here}.prediction.peak_bytes`"
            )
    before = 0
    for number, unstaged in enumerate(graph.unstaged):
        here = f"{place}.unstaged[{number}]"
        add(unstaged.node, f"{here}.node")
        if not before <= unstaged.before_stage <= len(graph.stages):
            raise ValueError(
                f"Expected {before} or more and at most {len(graph.stages)}, the number of stages, "
                f"got {unstaged.before_stage} at `{here}.before_stage`"
            )
        before = unstaged.before_stage
    if len(seen) > graph.convolution_count:
        raise ValueError(
            f"Expected at most {graph.convolution_count} nodes, as many as the graph has "
            f"convolutions, got {len(seen)} at `{place}`"
        )


PLAN_FILE = VersionedFormat(
    Plan,
    noun="plan",
    check=_check_plan,
    error=PlanError,
    remedy="Correct the file, or plan the graph anew.",
)
load_plan = PLAN_FILE.load
save_plan = PLAN_FILE.save
plan_schema = PLAN_FILE.schema
