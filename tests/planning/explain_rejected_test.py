"""Why independent convolutions share no stage: each reason where it holds, the promising first."""

from __future__ import annotations

import dataclasses
import io

import pytest
from hypothesis import given, settings
from paper_problem import paper_problem
from planning_values import make_lanes, make_problem, problems
from profile_values import HOPPER_SM, KERNEL
from rich.console import Console

from tf_interop.planning.explain import explain_plan
from tf_interop.planning.make import PlanOptions, make_plan
from tf_interop.planning.problem import Candidate, MeasuredStage, PlanningProblem
from tf_interop.planning.tables import explain_stages
from tf_interop.planning.types import GraphPlan, Plan, RejectedStage

PAIR = {"a": "", "b": ""}
TEN = {"a": 10.0, "b": 10.0}
ONE_IMAGE = {"a": "x", "b": "x"}


def explained(problem: PlanningProblem, options: PlanOptions | None = None) -> GraphPlan:
    return explain_plan(problem, make_plan(problem, options), options)


def reasons_of(problem: PlanningProblem) -> dict[str, str]:
    return {" ".join(each.nodes): each.why_not for each in explained(problem).rejected}


def modelled(blocks: int, other_us: float) -> PlanningProblem:
    """Kernels of which one block fills an SM; "a" takes 10 us, "b" the other time."""
    kernel = dataclasses.replace(KERNEL, grid=(blocks, 1, 1), block=(512, 1, 1))
    problem = make_problem(PAIR, TEN)
    costs = tuple(
        dataclasses.replace(each, candidates=(Candidate("GEMM", us, kernels=(kernel,)),))
        for each, us in zip(problem.costs, (10.0, other_us), strict=True)
    )
    return dataclasses.replace(problem, costs=costs, sm_count=132, sm_limits=HOPPER_SM)


def ten_each(nodes: dict[str, str], stages: dict[str, float], **others: int) -> PlanningProblem:
    return make_problem(nodes, dict.fromkeys(nodes, 10.0), stages, **others)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("problem", "pair", "why_not"),
    [
        pytest.param(
            make_problem(PAIR, TEN, {"a b": 23.5}), "a b", ["measured 3.5 us slower"], id="slower"
        ),
        pytest.param(
            make_problem(PAIR, TEN, {"a b": 18}, spread_us=2.5),
            "a b",
            ["measured 2.0 us faster", "off by 2.5"],
            id="within_the_spread",
        ),
        pytest.param(make_problem(PAIR, TEN), "a b", ["not measured together"], id="unmeasured"),
        pytest.param(
            modelled(blocks=132, other_us=10), "a b", ["modelled to take as long"], id="modelled"
        ),
        # What is left of the second wave of the one helps the other, by less than the model is
        # trusted.
        pytest.param(
            modelled(blocks=140, other_us=1.5),
            "a b",
            ["modelled 1.5 us faster", "off by 2.0"],
            id="modelled_within_the_spread",
        ),
        pytest.param(
            make_problem(PAIR, TEN, {"a b": 21}, merge_keys=ONE_IMAGE),
            "a b",
            ["measured 1.0 us slower", "merged", "not measured"],
            id="not_measured_merged",
        ),
        pytest.param(
            make_problem(PAIR, TEN, {"a b": 23}, merged={"a b": 21}, merge_keys=ONE_IMAGE),
            "a b",
            ["measured merged 1.0 us slower"],
            id="merged",
        ),
        # Of different images it does not matter what merged ones take.
        pytest.param(
            make_problem(PAIR, TEN, {"a b": 23}, merged={"a b": 21}),
            "a b",
            ["measured 3.0 us slower"],
            id="merged_of_two_images",
        ),
        pytest.param(
            ten_each({"a": "", "b": "", "c": ""}, {"a b": 12, "a c": 15}),
            "a c",
            ["5.0 us faster, measured", "'a' runs in stage 0"],
            id="in_another_stage",
        ),
        # "c" and "f" win together, but "g", after "c", shares a stage with "e", before "f".
        pytest.param(
            ten_each({"c": "", "e": "", "g": "c", "f": "e"}, {"e g": 11, "c f": 12}),
            "c f",
            ["8.0 us faster, measured", "in the order of this plan"],
            id="other_stages_fix_the_order",
        ),
        # Two outputs of 10 bytes, two workspaces of 5.
        pytest.param(
            ten_each(PAIR, {"a b": 12}, memory_budget_bytes=26), "a b", ["4 bytes"], id="memory"
        ),
        # The output of "s", which both read.
        pytest.param(
            ten_each({"s": "", "a": "s", "b": "s"}, {"a b": 12}, memory_budget_bytes=39),
            "a b",
            [" 1 bytes"],
            id="alive_beside_them",
        ),
        # Beside "b" the output of "s" would be alive until then.
        pytest.param(
            ten_each({"s": "", "a": "s", "m": "", "b": "m"}, {"a b": 12}, memory_budget_bytes=45),
            "a b",
            [" 5 bytes"],
            id="alive_longer_than_in_the_plan",
        ),
    ],
)
def test_says_why_not(problem: PlanningProblem, pair: str, why_not: list[str]) -> None:
    reason = reasons_of(problem)[pair]
    assert all(each in reason for each in why_not), reason


def test_takes_the_best_of_several_measurements_beside_their_own_sequence() -> None:
    problem = make_problem(PAIR, TEN, {"a b": 23.5})
    other = dataclasses.replace(problem.stages[0], latency_us=41, sequential_us=40)
    problem = dataclasses.replace(problem, stages=(*problem.stages, other))
    assert "measured 1.0 us slower" in reasons_of(problem)["a b"]


@settings(max_examples=200, deadline=None)
@given(problems())
def test_the_exact_search_comes_to_all_that_would_win(problem: PlanningProblem) -> None:
    problem = dataclasses.replace(problem, memory_budget_bytes=None)
    assert not any("did not come to it" in why_not for why_not in reasons_of(problem).values())


def test_says_that_a_bounded_search_did_not_come_to_it() -> None:
    # What is in no stage here would have one after "s".
    problem = ten_each({"s": "", "a": "s", "b": "s", "e": "a b"}, {"a b": 12})
    unstaged = make_plan(dataclasses.replace(problem, stages=()))
    (rejected, *_) = explain_plan(problem, unstaged).rejected
    assert rejected.nodes == ("a", "b")
    assert "did not come to it" in rejected.why_not


def test_says_that_larger_stages_were_not_searched_for() -> None:
    nodes = dict.fromkeys("abc", "")
    problem = ten_each(nodes, {"a b": 25, "b c": 25, "a c": 25})
    three = MeasuredStage(make_lanes("a b c"), 12)
    problem = dataclasses.replace(problem, stages=(*problem.stages, three))
    rejected = explained(problem, PlanOptions(max_lanes=2)).rejected
    assert rejected[0].nodes == ("a", "b", "c")
    assert "18.0 us faster, measured, but stages of up to 2" in rejected[0].why_not
    assert explained(problem).rejected == ()


def test_puts_first_what_is_in_no_stage_and_could_save_most() -> None:
    problem = make_problem(
        dict.fromkeys("abcdef", ""),
        {"a": 50, "b": 50, "c": 5, "d": 20, "e": 30, "f": 1},
        {"a b": 60, "d e": 49.5},
        spread_us=1,
    )
    rejected = explained(problem).rejected
    assert [each.nodes for each in rejected[:3]] == [("d", "e"), ("c", "d"), ("c", "e")]
    assert len(rejected) == 5


def test_tells_of_equal_ones_once() -> None:
    problem = ten_each({"a": "", "b": "a", "c": "", "d": "c"}, {})
    nodes = tuple(dataclasses.replace(each, costs="a") for each in problem.nodes)
    (rejected,) = explained(dataclasses.replace(problem, nodes=nodes)).rejected
    # a and b each with c and d.
    assert (rejected.nodes, rejected.count) == (("a", "c"), 4)


def test_names_of_equal_ones_those_that_are_in_no_stage() -> None:
    # "p" and "q" come twice; the first "p" shares a stage with "r".
    problem = ten_each({"p": "", "q": "", "r": "", "p2": "p q r", "q2": "p q r"}, {"p r": 12})
    renamed = tuple(
        dataclasses.replace(each, costs=each.name.rstrip("2")) for each in problem.nodes
    )
    (first, *_) = explained(dataclasses.replace(problem, nodes=renamed)).rejected
    assert (first.nodes, first.count) == (("p2", "q2"), 2)


def test_says_nothing_of_what_can_be_no_stage_or_is_one() -> None:
    assert explained(ten_each({"a": "", "b": "a", "c": "b"}, {})).rejected == ()
    problem = make_problem(PAIR, TEN)
    nodes = (problem.nodes[0], dataclasses.replace(problem.nodes[1], group="GPU:1"))
    assert explained(dataclasses.replace(problem, nodes=nodes)).rejected == ()
    assert explained(make_problem(PAIR, TEN, {"a b": 12})).rejected == ()
    # Nor of a plan that no planner made.
    by_hand = GraphPlan("0123456789abcdef", 3, ())
    assert explain_plan(paper_problem(), by_hand) == by_hand


@pytest.mark.parametrize("count", [1, 3])
def test_in_words(count: int) -> None:
    plan = GraphPlan("0", 9, (), rejected=(RejectedStage(("a", "b"), "not measured", count),))
    text = io.StringIO()
    explain_stages(Plan((plan,)), Console(file=text))
    more = " (2 more of the same costs)" if count == 3 else ""
    assert f"a and b{more}: not measured" in text.getvalue()


@pytest.mark.parametrize(
    ("problem", "why"),
    [
        (make_problem(PAIR, TEN, {"a b": 15}), ""),
        (
            make_problem(PAIR, TEN, {"a b": 18}, spread_us=2.5),
            "the one measured set does not beat its convolutions",
        ),
        (
            make_problem(
                {"a": "", "b": "", "c": ""},
                {"a": 10.0, "b": 11.0, "c": 12.0},
                {"a b": 30.0, "a c": 22.0, "a b c": 40.0},
            ),
            "none of 3 measured sets beats its convolutions",
        ),
        (make_problem(PAIR, TEN), "without kernels or device there is no model"),
        (modelled(blocks=132, other_us=10), "by the model none win by more than it is trusted"),
        (ten_each({"a": "", "b": "a"}, {}), "no two of its measured convolutions are independent"),
        (
            ten_each(PAIR, {"a b": 15}, memory_budget_bytes=25),
            "of what wins by itself, a and b: 5.0 us faster, measured, but 5 bytes",
        ),
    ],
)
def test_says_in_one_sentence_why_there_is_no_stage(problem: PlanningProblem, why: str) -> None:
    said = explained(problem).why_no_stage
    assert why in said and bool(why) == bool(said)
