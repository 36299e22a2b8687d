from __future__ import annotations

import pytest

from tf_interop.stage import LARGEST_INT, Lane, Stage, Step


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
