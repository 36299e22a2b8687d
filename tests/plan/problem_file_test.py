"""Files of planning problems: what is written reads back, what is not legal is refused."""

from __future__ import annotations

import json
import pathlib

import pytest
from hypothesis import HealthCheck, given, settings
from planning_values import make_problem, problems

from tf_interop.errors import PlanError
from tf_interop.plan.problem import PlanningProblem
from tf_interop.plan.problem_file import load_problem, problem_schema, save_problem

PROBLEM = make_problem({"a": "", "b": "a"}, {"a": 1, "b": 2}, {"a b": 3}, merged={"a b": 2})


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(problems())
def test_what_was_saved_reads_back(tmp_path: pathlib.Path, problem: PlanningProblem) -> None:
    path = tmp_path / "problem.json"
    save_problem(problem, path)
    assert load_problem(path) == problem


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"version": 1', '"version": 2', r"version 1, got 2 at `\$.version`"),
        ('"costs": "b"', '"costs": "c"', r"costs for node 'b', got 'c' at `\$.nodes\[1\].costs`"),
        ('"name": "b"', '"name": "a"', "each name once, got 'a' 2 times"),
        ('"latency_us": 3', '"latency_us": -3', r"`float` > 0.0 at `\$.stages\[0\].latency_us`"),
        ('"workspace_bytes": 10', '"workspace": 10', "only the fields .* got `workspace`"),
        ('"merged": [true]', '"merged": [false]', "lane 0 of 2, not merged, at `"),
        ('"merged": [true]', '"merged": [true, true]', "none or all of 1 lanes, got 2 at"),
        ('"lanes": [0, 0]', '"lanes": [0, 1]', "merged for none or all of 2 lanes, got 1"),
        ('"lanes": [0, 0]', '"lanes": [1, 0]', r"the convolutions of each together, got \[1, 0\]"),
        ('"lanes": [0, 0]', '"lanes": [0, 2]', r"Expected lanes 0, 1, 2, .* got \[0, 2\]"),
        ('"lanes": [0, 0]', '"lanes": [0]', "a lane for none or all of 2 convolutions, got 1"),
        (
            '["WINOGRAD", "WINOGRAD"]',
            '["WINOGRAD", "FFT"]',
            "one algorithm in merged lane 0, got .* 'FFT'",
        ),
        ('"merged": []', '"merged": [true, false]', "got lane 0 of 1, merged, at"),
    ],
)
def test_refuses_what_is_not_legal(
    tmp_path: pathlib.Path, old: str, new: str, message: str
) -> None:
    path = tmp_path / "problem.json"
    save_problem(PROBLEM, path)
    content = json.dumps(json.loads(path.read_text()))
    assert old in content
    path.write_text(content.replace(old, new))
    with pytest.raises(PlanError, match=message):
        load_problem(path)


def test_the_schema_names_the_format() -> None:
    schema = json.dumps(problem_schema())
    assert '"const": "tf_interop.problem"' in schema
