"""Why independent convolutions share no stage: each reason where it holds, the promising first."""

from __future__ import annotations

import dataclasses
import io

import pytest
from hypothesis import given, settings
from paper_problem import paper_problem
from planning_values import make_problem, problems
from profile_values import HOPPER_SM, KERNEL
from rich.console import Console

from tf_interop.plan.explain import explain_plan
from tf_interop.plan.make import PlanOptions, make_plan
from tf_interop.plan.problem import Candidate, KnownStage, PlanningProblem
from tf_interop.plan.tables import explain_stages
from tf_interop.plan.types import GraphPlan, MissedStage, Plan

PAIR = {"a": "", "b": ""}
TEN = {"a": 10.0, "b": 10.0}


def missed_of(
    problem: PlanningProblem, options: PlanOptions | None = None
) -> tuple[MissedStage, ...]:
    return explain_plan(problem, make_plan(problem, options), options).missed


def reasons_of(problem: PlanningProblem) -> dict[str, str]:
    return {" ".join(each.nodes): each.why_not for each in missed_of(problem)}


def test_says_how_much_slower_it_was_measured() -> None:
    problem = make_problem(PAIR, TEN, {"a b": 23.5})
    assert reasons_of(problem) == {"a b": "measured 3.5 us slower than one after another"}


def test_takes_the_best_of_several_measurements_beside_their_own_sequence() -> None:
    problem = make_problem(PAIR, TEN, {"a b": 23.5})
    other = dataclasses.replace(problem.stages[0], latency_us=41, sequential_us=40)
    problem = dataclasses.replace(problem, stages=(*problem.stages, other))
    assert reasons_of(problem) == {"a b": "measured 1.0 us slower than one after another"}


def test_says_that_a_win_is_within_the_spread() -> None:
    problem = make_problem(PAIR, TEN, {"a b": 18}, spread_us=2.5)
    assert reasons_of(problem) == {"a b": "measured 2.0 us faster, which may be off by 2.5"}


def test_says_that_nothing_is_known() -> None:
    (why_not,) = reasons_of(make_problem(PAIR, TEN)).values()
    assert why_not == "not measured together, and without kernels or device there is no model"


def _modelled(blocks: int, other_us: float) -> PlanningProblem:
    """Kernels of which one block fills an SM; "a" takes 10 us, "b" the other time."""
    kernel = dataclasses.replace(KERNEL, grid=(blocks, 1, 1), block=(512, 1, 1))
    problem = make_problem(PAIR, TEN)
    costs = tuple(
        dataclasses.replace(each, candidates=(Candidate("GEMM", us, kernels=(kernel,)),))
        for each, us in zip(problem.costs, (10.0, other_us), strict=True)
    )
    return dataclasses.replace(problem, costs=costs, sm_count=132, sm_limits=HOPPER_SM)


def test_says_what_the_model_says() -> None:
    (why_not,) = reasons_of(_modelled(blocks=132, other_us=10)).values()
    assert why_not == "modelled to take as long as one after another"
    # What is left of the second wave of the one helps the other, by less than the model is trusted.
    (why_not,) = reasons_of(_modelled(blocks=140, other_us=1.5)).values()
    assert why_not == "modelled 1.5 us faster, which may be off by 2.0"


def test_says_that_what_could_be_merged_was_not_measured_so() -> None:
    keys = {"a": "x", "b": "x"}
    problem = make_problem(PAIR, TEN, {"a b": 21}, merge_keys=keys)
    assert reasons_of(problem)["a b"] == (
        "measured 1.0 us slower than one after another; merged into a wider convolution they were "
        "not measured"
    )
    problem = make_problem(PAIR, TEN, {"a b": 23}, merged={"a b": 21}, merge_keys=keys)
    assert reasons_of(problem)["a b"] == "measured merged 1.0 us slower than one after another"
    # Of different images it does not matter what merged ones take.
    problem = make_problem(PAIR, TEN, {"a b": 23}, merged={"a b": 21})
    assert reasons_of(problem)["a b"] == "measured 3.0 us slower than one after another"


def test_says_which_stage_uses_one_of_them() -> None:
    problem = make_problem(
        {"a": "", "b": "", "c": ""}, dict.fromkeys("abc", 10.0), {"a b": 12, "a c": 15}
    )
    assert reasons_of(problem) == {
        "a c": "5.0 us faster, measured, but 'a' runs in stage 0",
        "b c": "not measured together, and without kernels or device there is no model",
        "a b c": "not measured together, and without kernels or device there is no model",
    }


def test_says_that_other_stages_fix_the_order() -> None:
    # "c" and "f" win together, but "g", behind "c", shares a stage with "e", before "f".
    problem = make_problem(
        {"c": "", "e": "", "g": "c", "f": "e"},
        dict.fromkeys("cegf", 10.0),
        {"e g": 11, "c f": 12},
    )
    reasons = reasons_of(problem)
    assert reasons["c f"] == (
        "8.0 us faster, measured, but in the order of this plan one of them has to run before what "
        "the other waits for"
    )


@settings(max_examples=200, deadline=None)
@given(problems())
def test_the_exact_search_comes_to_all_that_would_win(problem: PlanningProblem) -> None:
    problem = dataclasses.replace(problem, memory_budget_bytes=None)
    assert not any("did not come to it" in why_not for why_not in reasons_of(problem).values())


def test_says_that_a_bounded_search_did_not_come_to_it() -> None:
    # What is in no stage here would have one behind "s".
    problem = make_problem(
        {"s": "", "a": "s", "b": "s", "e": "a b"}, dict.fromkeys("sabe", 10.0), {"a b": 12}
    )
    alone = make_plan(dataclasses.replace(problem, stages=()))
    (missed, *_) = explain_plan(problem, alone).missed
    assert missed.nodes == ("a", "b")
    assert missed.why_not == (
        "8.0 us faster, measured, but the search, which was bounded, did not come to it"
    )


def test_says_by_how_much_the_memory_is_short() -> None:
    # Two outputs of 10 bytes, two workspaces of 5.
    problem = make_problem(PAIR, TEN, {"a b": 12}, memory_budget_bytes=26)
    assert reasons_of(problem) == {
        "a b": "8.0 us faster, measured, but 4 bytes more than the budget would be needed"
    }


def test_counts_what_is_alive_beside_them() -> None:
    # The output of "s", which both read.
    nodes = {"s": "", "a": "s", "b": "s"}
    problem = make_problem(nodes, dict.fromkeys("sab", 10.0), {"a b": 12}, memory_budget_bytes=39)
    assert reasons_of(problem)["a b"].endswith("but 1 bytes more than the budget would be needed")


def test_counts_what_they_would_read_later_than_in_the_plan() -> None:
    # Beside "b" the output of "s" would be alive until then.
    nodes = {"s": "", "a": "s", "m": "", "b": "m"}
    problem = make_problem(nodes, dict.fromkeys("samb", 10.0), {"a b": 12}, memory_budget_bytes=45)
    assert reasons_of(problem)["a b"].endswith("but 5 bytes more than the budget would be needed")


def test_says_that_larger_stages_were_not_searched_for() -> None:
    names = "abc"
    problem = make_problem(
        dict.fromkeys(names, ""), dict.fromkeys(names, 10.0), {"a b": 25, "b c": 25, "a c": 25}
    )
    known = KnownStage(("a", "b", "c"), ("GEMM",) * 3, 12)
    problem = dataclasses.replace(problem, stages=(*problem.stages, known))
    missed = missed_of(problem, PlanOptions(max_lanes=2))
    assert missed[0].nodes == ("a", "b", "c")
    assert missed[0].why_not == "18.0 us faster, measured, but stages of up to 2 were searched for"
    assert missed_of(problem) == ()


def test_puts_first_what_is_in_no_stage_and_could_save_most() -> None:
    problem = make_problem(
        dict.fromkeys("abcdef", ""),
        {"a": 50, "b": 50, "c": 5, "d": 20, "e": 30, "f": 1},
        {"a b": 60, "d e": 49.5},
        spread_us=1,
    )
    missed = missed_of(problem)
    assert [each.nodes for each in missed[:3]] == [("d", "e"), ("c", "d"), ("c", "e")]
    assert len(missed) == 5


def test_tells_of_equal_ones_once() -> None:
    problem = make_problem({"a": "", "b": "a", "c": "", "d": "c"}, dict.fromkeys("abcd", 10.0))
    nodes = tuple(dataclasses.replace(each, costs="a") for each in problem.nodes)
    (missed,) = missed_of(dataclasses.replace(problem, nodes=nodes))
    # a and b each with c and d.
    assert (missed.nodes, missed.count) == (("a", "c"), 4)


def test_names_of_equal_ones_those_that_are_in_no_stage() -> None:
    # "p" and "q" come twice; the first "p" shares a stage with "r".
    nodes = {"p": "", "q": "", "r": "", "p2": "p q r", "q2": "p q r"}
    problem = make_problem(nodes, dict.fromkeys(nodes, 10.0), {"p r": 12})
    renamed = tuple(
        dataclasses.replace(each, costs=each.name.rstrip("2")) for each in problem.nodes
    )
    missed = missed_of(dataclasses.replace(problem, nodes=renamed))
    assert (missed[0].nodes, missed[0].count) == (("p2", "q2"), 2)


def test_says_nothing_of_convolutions_that_depend_on_each_other_or_differ_in_group() -> None:
    problem = make_problem({"a": "", "b": "a", "c": "b"}, dict.fromkeys("abc", 10.0))
    assert missed_of(problem) == ()
    problem = make_problem(PAIR, TEN)
    nodes = (problem.nodes[0], dataclasses.replace(problem.nodes[1], group="GPU:1"))
    assert missed_of(dataclasses.replace(problem, nodes=nodes)) == ()


def test_says_nothing_of_what_is_a_stage() -> None:
    assert missed_of(make_problem(PAIR, TEN, {"a b": 12})) == ()


def test_says_nothing_of_a_plan_that_no_planner_made() -> None:
    problem = paper_problem()
    assert explain_plan(problem, GraphPlan("0123456789abcdef", 3, ())).missed == ()


@pytest.mark.parametrize("count", [1, 3])
def test_in_words(count: int) -> None:
    plan = GraphPlan("0", 9, (), missed=(MissedStage(("a", "b"), "not measured", count),))
    text = io.StringIO()
    explain_stages(Plan((plan,)), Console(file=text))
    more = " (2 more of the same costs)" if count == 3 else ""
    assert f"Not together, the most promising first:\n  a and b{more}: not measured" in (
        text.getvalue()
    )


def why_no_stage(problem: PlanningProblem, options: PlanOptions | None = None) -> str:
    return explain_plan(problem, make_plan(problem, options), options).why_no_stage


def test_says_in_one_sentence_that_no_measured_set_wins() -> None:
    problem = make_problem(PAIR, TEN, {"a b": 18}, spread_us=2.5)
    loses = "its convolutions one after another by more than the spread"
    assert why_no_stage(problem) == f"the one measured set does not beat {loses}"
    three = {"a": "", "b": "", "c": ""}
    times = {"a": 10.0, "b": 11.0, "c": 12.0}
    measured = {"a b": 30.0, "a c": 22.0, "a b c": 40.0}
    problem = make_problem(three, times, measured)
    assert why_no_stage(problem) == f"none of 3 measured sets beats {loses}"


def test_says_why_there_is_no_stage_where_nothing_was_measured_together() -> None:
    assert why_no_stage(make_problem(PAIR, TEN)) == (
        "of its independent convolutions none were measured together, and without kernels or "
        "device there is no model"
    )
    assert why_no_stage(_modelled(blocks=132, other_us=10)).endswith(
        "by the model none win by more than it is trusted"
    )
    assert why_no_stage(make_problem({"a": "", "b": "a"}, TEN)) == (
        "no two of its measured convolutions are independent"
    )


def test_names_what_wins_and_has_no_memory() -> None:
    assert why_no_stage(make_problem(PAIR, TEN, {"a b": 15})) == ""
    assert why_no_stage(make_problem(PAIR, TEN, {"a b": 15}, memory_budget_bytes=25)) == (
        "of what wins by itself, a and b: 5.0 us faster, measured, but 5 bytes more than the "
        "budget would be needed"
    )
