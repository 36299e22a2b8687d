"""Files of planning problems: versioned JSON."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import msgspec

from tf_interop.errors import PlanError
from tf_interop.planning.problem import (
    PROBLEM_FORMAT,
    PROBLEM_VERSION,
    PlanningProblem,
)
from tf_interop.versioned_file import (
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
        ValueError: names are not unique, something refers to what is not there, nodes come before
            what they depend on, a convolution has two candidates of one algorithm, a stage is not
            valid, or a number is out of its bounds or not finite. Names the place as `$.nodes[3]`.
    """
    # The bounds of the types, which hold for files; JSON has no infinity either.
    msgspec.json.decode(msgspec.json.encode(problem), type=PlanningProblem)
    names = _unique((each.name for each in problem.costs), "$.costs")
    _unique((node.name for node in problem.nodes), "$.nodes")
    for index, costs in enumerate(problem.costs):
        algorithms = (str(candidate.algorithm) for candidate in costs.candidates)
        _unique(algorithms, f"$.costs[{index}].candidates")
    before: set[str] = set()
    for index, node in enumerate(problem.nodes):
        place = f"$.nodes[{index}]"
        _expect_known([node.costs], names, f"{place}.costs", f"names of costs for '{node.name}'")
        what = f"what node '{node.name}' depends on before it"
        _expect_known(node.predecessors, before, f"{place}.predecessors", what)
        what = f"predecessors of node '{node.name}'"
        _expect_known(node.follows, node.predecessors, f"{place}.follows", what)
        before.add(node.name)
    for index, stage in enumerate(problem.stages):
        place = f"$.stages[{index}].stage"
        _expect_known(stage.stage.operations, names, place, "names of costs")
        try:
            stage.stage.validate()
        except ValueError as error:
            raise ValueError(f"{error} of `{place}`") from error


def _unique(names: Iterable[str], place: str) -> set[str]:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"Expected each name once, got '{name}' again at `{place}`")
        seen.add(name)
    return seen


def _expect_known(names: Iterable[str], known: Container[str], place: str, what: str) -> None:
    for name in names:
        if name not in known:
            raise ValueError(f"Expected {what}, got '{name}' at `{place}`")


_PROBLEM_FILE = VersionedFormat(
    noun="planning problem",
    name=PROBLEM_FORMAT,
    version=PROBLEM_VERSION,
    value_type=PlanningProblem,
    check=check_problem,
    error=PlanError,
    remedy="Correct the file, or make the problem anew.",
)
