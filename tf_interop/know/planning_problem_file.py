"""Files of planning problems: versioned JSON."""

from __future__ import annotations

import collections
import graphlib
from collections.abc import Iterable
from typing import Any

from tf_interop.errors import PlanError
from tf_interop.know.planning_problem import (
    PROBLEM_FORMAT,
    PROBLEM_VERSION,
    PlanningProblem,
)
from tf_interop.know.versioned_file import (
    PathLike,
    VersionedFormat,
    load_versioned,
    save_versioned,
    versioned_schema,
)


def load_problem(path: PathLike) -> PlanningProblem:
    """Reads a planning problem.

    Raises:
        PlanError: there is no such file, it is not whole, of another format or version, or not
            legal (see `check_problem`). Says where in the file, what was expected and what to do.
    """
    return load_versioned(path, _PROBLEM_FILE)


def save_problem(problem: PlanningProblem, path: PathLike) -> None:
    """Writes a planning problem, atomically; equal ones give equal bytes.

    Raises:
        PlanError: the problem is not legal, or the file cannot be written.
    """
    save_versioned(problem, path, _PROBLEM_FILE)


def problem_schema() -> dict[str, Any]:
    """JSON schema (2020-12) of planning problems: types, fields and bounds."""
    return versioned_schema(_PROBLEM_FILE)


def check_problem(problem: PlanningProblem) -> None:
    """Checks what the types allow and no problem may be.

    Raises:
        ValueError: names are not unique, something refers to what is not there, a convolution has
            no candidate or two of one algorithm, nodes form a cycle or come before what they
            depend on, or a stage has not one algorithm for each convolution. Names the place as
            `$.nodes[3]`.
    """
    _check_unique("costs", (each.name for each in problem.costs))
    _check_unique("nodes", (node.name for node in problem.nodes))
    for index, costs in enumerate(problem.costs):
        place = f"$.costs[{index}]"
        if not costs.candidates:
            raise ValueError(
                f"Expected at least one candidate for convolution '{costs.name}', got none: "
                f"measure an algorithm for it, at `{place}.candidates`"
            )
        algorithms = [candidate.algorithm for candidate in costs.candidates]
        if len(set(algorithms)) < len(algorithms):
            raise ValueError(
                f"Expected each algorithm once for convolution '{costs.name}', got {algorithms} "
                f"at `{place}.candidates`"
            )
    known = {each.name for each in problem.costs}
    for index, node in enumerate(problem.nodes):
        if node.costs not in known:
            raise ValueError(
                f"Expected the name of costs for node '{node.name}', got '{node.costs}' at "
                f"`$.nodes[{index}].costs`"
            )
    _check_order(problem)
    for index, stage in enumerate(problem.stages):
        place = f"$.stages[{index}]"
        unknown = [name for name in stage.costs if name not in known]
        if unknown:
            raise ValueError(f"Expected names of costs, got '{unknown[0]}' at `{place}.costs`")
        if len(stage.algorithms) != len(stage.costs):
            raise ValueError(
                f"Expected an algorithm for each of {len(stage.costs)} convolutions, got "
                f"{len(stage.algorithms)} at `{place}.algorithms`"
            )
        for field in ("priorities", "sm_counts"):
            given = getattr(stage, field)
            if given and len(given) != len(stage.costs):
                raise ValueError(
                    f"Expected {field} for none or all of {len(stage.costs)} lanes, got "
                    f"{len(given)} at `{place}.{field}`"
                )


def _check_unique(field: str, names: Iterable[str]) -> None:
    for name, count in collections.Counter(names).items():
        if count > 1:
            raise ValueError(f"Expected each name once, got '{name}' {count} times at `$.{field}`")


def _check_order(problem: PlanningProblem) -> None:
    names = {node.name for node in problem.nodes}
    for index, node in enumerate(problem.nodes):
        for predecessor in node.predecessors:
            if predecessor not in names:
                raise ValueError(
                    f"Expected names of nodes before node '{node.name}', got '{predecessor}' at "
                    f"`$.nodes[{index}].predecessors`"
                )
    try:
        graphlib.TopologicalSorter(
            {node.name: node.predecessors for node in problem.nodes}
        ).prepare()
    except graphlib.CycleError as error:
        cycle = " -> ".join(f"'{name}'" for name in error.args[1])
        raise ValueError(f"Expected nodes without a cycle, got {cycle} at `$.nodes`") from error
    seen: set[str] = set()
    for index, node in enumerate(problem.nodes):
        late = [name for name in node.predecessors if name not in seen]
        if late:
            raise ValueError(
                f"Expected '{late[0]}' before node '{node.name}', which depends on it, got it "
                f"behind, at `$.nodes[{index}]`"
            )
        seen.add(node.name)


_PROBLEM_FILE = VersionedFormat(
    noun="planning problem",
    name=PROBLEM_FORMAT,
    version=PROBLEM_VERSION,
    value_type=PlanningProblem,
    check=check_problem,
    error=PlanError,
    remedy="Correct the file, or make the problem anew.",
)
