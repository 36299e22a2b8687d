"""Plan files: versioned JSON, one file for the plans of several graphs (`plan_schema`)."""

from __future__ import annotations

from tf_interop.errors import PlanError
from tf_interop.planning.types import Plan
from tf_interop.versioned_file import VersionedFormat


def _check_plan(plan: Plan) -> None:
    """Checks what the types allow and no plan may be."""
    seen: set[tuple[str, int | None]] = set()
    for index, graph in enumerate(plan.graphs):
        place = f"$.graphs[{index}]"
        key = graph.fingerprint, graph.batch_size
        if key in seen:
            raise ValueError(
                f"Expected each graph once for a batch size, got fingerprint {graph.fingerprint!r} "
                f"again at `{place}.fingerprint`"
            )
        seen.add(key)
        for number, stage in enumerate(graph.stages):
            try:
                stage.validate()
            except ValueError as error:
                raise ValueError(f"{error} in `{place}.stages[{number}]`") from error
        names = graph.planned_nodes
        if len(set(names)) < len(names) or len(names) > graph.convolution_count:
            raise ValueError(
                f"Expected each of at most {graph.convolution_count} convolutions once, got "
                f"{names} at `{place}`"
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
