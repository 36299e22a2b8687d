"""Files of planning problems: what is written reads back, what is not legal is refused.

What holds for every kind of file is in `formats_test.py`.
"""

from __future__ import annotations

import json
import pathlib

import pytest
from hypothesis import HealthCheck, given, settings
from planning_values import make_problem, problems

from tf_interop.errors import PlanError
from tf_interop.planning.problem import PlanningProblem, load_problem, save_problem

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
    ("old", "new", "place"),
    [
        ('"costs": "b"', '"costs": "c"', r"\$.nodes\[1\].costs"),
        ('"name": "b"', '"name": "a"', r"\$.costs"),
        ('"predecessors": ["a"]', '"predecessors": ["c"]', r"\$.nodes\[1\].predecessors"),
        ('"predecessors": ["a"]', '"predecessors": []', r"\$.nodes\[1\].follows"),
        ('"latency_us": 3', '"latency_us": -3', r"\$.stages\[0\].latency_us"),
        ('"operation": "b"', '"operation": "c"', r"\$.stages\[0\].stage"),
        ('"b", "algorithm": "WINOGRAD"', '"b", "algorithm": "FFT"', r"\$.stages\[1\].stage"),
    ],
)
def test_refuses_what_is_not_legal(tmp_path: pathlib.Path, old: str, new: str, place: str) -> None:
    path = tmp_path / "problem.json"
    save_problem(PROBLEM, path)
    content = json.dumps(json.loads(path.read_text()))
    assert old in content
    path.write_text(content.replace(old, new))
    with pytest.raises(PlanError, match=place):
        load_problem(path)
