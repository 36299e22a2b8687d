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
          "why": "profiled: 21.0 us against 30.5 us",
          "lane_options": [
            {"priority": -1, "sm_count": 64},
            {"priority": 0, "sm_count": 0}
          ]
        }
      ]
    }
  ],
  "format": "tf_interop.plan",
  "version": 1,
  "made_with": {"tensorflow": "2.21.0"}
}
"""

from __future__ import annotations

from typing import Any

from tf_interop.errors import PlanError
from tf_interop.know.algorithm import check_algorithm
from tf_interop.know.plan import PLAN_FORMAT, PLAN_VERSION, GraphPlan, Plan
from tf_interop.know.versioned_file import (
    PathLike,
    VersionedFormat,
    load_versioned,
    save_versioned,
    versioned_schema,
)


def load_plan(path: PathLike) -> Plan:
    """Reads a plan file.

    Legal is a file that names each fingerprint once, each node of a graph in one place, at least
    one lane in each stage and one convolution in each lane, options for all lanes of a stage or
    for none, and algorithms that a runner knows. Whether the stages suit a graph is for
    `check_stages` to say.

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
    are as many options as lanes are beyond it.
    """
    return versioned_schema(_PLAN_FILE)


def _check_plan(plan: Plan) -> None:
    seen: dict[str, int] = {}
    for index, graph in enumerate(plan.graphs):
        first = seen.setdefault(graph.fingerprint, index)
        if first != index:
            raise ValueError(
                f"Expected each graph once, got fingerprint {graph.fingerprint!r} of "
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
        for lane_number, lane in enumerate(stage.lanes):
            for index, pinned in enumerate(lane):
                here = f"{place}.stages[{stage_number}].lanes[{lane_number}][{index}]"
                first = places.setdefault(pinned.node, here)
                if first != here:
                    raise ValueError(
                        f"Expected each node once, got {pinned.node!r} of `{first}` again at "
                        f"`{here}.node`"
                    )
                if pinned.algorithm is not None:
                    try:
                        check_algorithm(pinned.algorithm)
                    except ValueError as error:
                        raise ValueError(f"{error} at `{here}.algorithm`") from error
    if len(places) > graph.convolution_count:
        raise ValueError(
            f"Expected at most {graph.convolution_count} nodes in the stages, as many as the graph "
            f"has convolutions, got {len(places)} at `{place}.stages`"
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
