"""Files of planning problems: versioned JSON."""

from __future__ import annotations

import collections
import graphlib
import itertools
import math
from collections.abc import Container, Iterable
from typing import Any

import msgspec

from tf_interop.errors import PlanError
from tf_interop.plan.problem import (
    PROBLEM_FORMAT,
    PROBLEM_VERSION,
    ConvolutionCosts,
    KnownStage,
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
        ValueError: names are not unique, something refers to what is not there, a convolution has
            no candidate or two of one algorithm, a time or size is negative or not finite, nodes
            form a cycle or come before what they depend on, a stage has not one algorithm for each
            convolution, or its lanes do not go together. Names the node and the place as
            `$.nodes[3]`.
    """
    _check_unique("costs", (each.name for each in problem.costs))
    _check_unique("nodes", (node.name for node in problem.nodes))
    node_of_costs = {node.costs: node.name for node in reversed(problem.nodes)}
    for index, costs in enumerate(problem.costs):
        whose = f"convolution '{costs.name}'"
        if costs.name in node_of_costs:
            whose += f" of node '{node_of_costs[costs.name]}'"
        _check_costs(costs, whose, f"$.costs[{index}]")
    known = {each.name for each in problem.costs}
    for index, node in enumerate(problem.nodes):
        if node.costs not in known:
            raise ValueError(
                f"Expected the name of costs for node '{node.name}', got '{node.costs}' at "
                f"`$.nodes[{index}].costs`"
            )
        _check_number(node.before_us, f"node '{node.name}'", f"$.nodes[{index}].before_us")
    _check_order(problem)
    for index, stage in enumerate(problem.stages):
        _check_stage(stage, known, f"$.stages[{index}]")
    # What is left are the bounds of the types, which hold for files: kernels, counts.
    msgspec.convert(msgspec.to_builtins(problem), PlanningProblem)


def _check_stage(stage: KnownStage, known: Container[str], place: str) -> None:
    unknown = [name for name in stage.costs if name not in known]
    if unknown:
        raise ValueError(f"Expected names of costs, got '{unknown[0]}' at `{place}.costs`")
    whose = f"the stage of {', '.join(repr(name) for name in stage.costs)}"
    _check_number(stage.latency_us, whose, f"{place}.latency_us", may_be_zero=False)
    _check_number(stage.spread_us, whose, f"{place}.spread_us")
    if stage.sequential_us is not None:
        _check_number(stage.sequential_us, whose, f"{place}.sequential_us", may_be_zero=False)
    if len(stage.algorithms) != len(stage.costs):
        raise ValueError(
            f"Expected an algorithm for each of {len(stage.costs)} convolutions, got "
            f"{len(stage.algorithms)} at `{place}.algorithms`"
        )
    lane_count = _check_lanes(stage, place)
    for field in ("priorities", "sm_counts", "merged"):
        given = getattr(stage, field)
        if given and len(given) != lane_count:
            raise ValueError(
                f"Expected {field} for none or all of {lane_count} lanes, got {len(given)} at "
                f"`{place}.{field}`"
            )
    _check_merged_lanes(stage, place)


def _check_lanes(stage: KnownStage, place: str) -> int:
    """Checks the numbers of the lanes; gives how many there are."""
    if not stage.lanes:
        return len(stage.costs)
    if len(stage.lanes) != len(stage.costs):
        raise ValueError(
            f"Expected a lane for none or all of {len(stage.costs)} convolutions, got "
            f"{len(stage.lanes)} at `{place}.lanes`"
        )
    steps = [later - lane for lane, later in itertools.pairwise(stage.lanes)]
    if stage.lanes[0] != 0 or not {0, 1}.issuperset(steps):
        raise ValueError(
            f"Expected lanes 0, 1, 2, … with the convolutions of each together, got "
            f"{list(stage.lanes)} at `{place}.lanes`"
        )
    return stage.lanes[-1] + 1


def _check_merged_lanes(stage: KnownStage, place: str) -> None:
    lanes = stage.lanes or tuple(range(len(stage.costs)))
    for lane, count in collections.Counter(lanes).items():
        is_merged = bool(stage.merged) and stage.merged[lane]
        if is_merged != (count > 1):
            words = "merged" if is_merged else "not merged"
            raise ValueError(
                f"Expected lanes of several convolutions to be merged, and no others, got lane "
                f"{lane} of {count}, {words}, at `{place}.merged`"
            )
        algorithms = [name for name, of in zip(stage.algorithms, lanes, strict=True) if of == lane]
        if len(set(algorithms)) > 1:
            raise ValueError(
                f"Expected one algorithm in merged lane {lane}, got {algorithms} at "
                f"`{place}.algorithms`"
            )


def _check_costs(costs: ConvolutionCosts, whose: str, place: str) -> None:
    if not costs.candidates:
        raise ValueError(
            f"Expected at least one candidate for {whose}, got none: measure an algorithm for it, "
            f"at `{place}.candidates`"
        )
    algorithms = [candidate.algorithm for candidate in costs.candidates]
    if len(set(algorithms)) < len(algorithms):
        raise ValueError(
            f"Expected each algorithm once for {whose}, got {algorithms} at `{place}.candidates`"
        )
    _check_number(costs.output_bytes, whose, f"{place}.output_bytes")
    for index, candidate in enumerate(costs.candidates):
        here = f"{place}.candidates[{index}]"
        _check_number(candidate.latency_us, whose, f"{here}.latency_us", may_be_zero=False)
        _check_number(candidate.spread_us, whose, f"{here}.spread_us")
        _check_number(candidate.workspace_bytes, whose, f"{here}.workspace_bytes")


def _check_number(value: float, whose: str, place: str, *, may_be_zero: bool = True) -> None:
    if not math.isfinite(value) or value < 0 or (value == 0 and not may_be_zero):
        least = "0 or more" if may_be_zero else "more than 0"
        raise ValueError(
            f"Expected a finite number, {least}, for {whose}, got {value} at `{place}`"
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
