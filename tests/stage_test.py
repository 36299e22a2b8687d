from __future__ import annotations

import pytest

from tf_interop.stage import LARGEST_INT, Lane, Stage, Step

STAGE = Stage(
    (
        Lane((Step("a", "GEMM"), Step("b"))),
        Lane((Step("c", "FFT"),), priority=-1),
        Lane((Step("d", "GEMM"), Step("e", "GEMM")), merged=True),
    )
)


def test_steps_are_lane_after_lane() -> None:
    STAGE.validate()
    assert STAGE.operations == ("a", "b", "c", "d", "e")
    assert STAGE.lane_of_step == (0, 0, 1, 2, 2)
    assert STAGE.lanes[2].operations == ("d", "e")


def test_other_operations_and_algorithms_keep_everything_else() -> None:
    upper = STAGE.map(str.upper)
    assert upper.operations == ("A", "B", "C", "D", "E")
    assert upper.map(str.lower) == STAGE
    changed = STAGE.with_algorithms("vwxyy")
    assert [step.algorithm for step in changed.steps] == ["v", "w", "x", "y", "y"]
    assert changed.with_algorithms(step.algorithm for step in STAGE.steps) == STAGE


@pytest.mark.parametrize(
    ("lane", "place"),
    [
        (Lane(()), r"\$.lanes\[1\].steps"),
        (Lane((Step("a"),), priority=-LARGEST_INT - 1), r"\$.lanes\[1\].priority"),
        (Lane((Step("a", "GEMM"),), merged=True), "lane 1"),
        (Lane((Step("a", "GEMM"), Step("b", "FFT")), merged=True), "lane 1"),
    ],
)
def test_refuses_a_lane_by_its_place(lane: Lane[str], place: str) -> None:
    with pytest.raises(ValueError, match=place):
        Stage((Lane((Step("x"),)), lane)).validate()
