"""How pairs are counted: whether what is fastest alone is fastest together."""

from __future__ import annotations

import re
from typing import Any

import pytest
from profile_values import LARGE, SMALL, make_algorithm, make_profile, make_stage

from tf_interop.profile.tables import describe_pairs

ALONE = [
    make_algorithm(configuration, algorithm, latency_us=latency_us)
    for configuration in (SMALL, LARGE)
    for algorithm, latency_us in (("eng0", 8.0), ("eng1", 9.0))
]


@pytest.mark.parametrize(
    ("stages", "counts"),
    [
        ([], ()),
        # With one combination there is nothing to compare.
        ([("00", 15)], ()),
        # Nothing to compare with.
        ([("01", 15), ("11", 14)], ()),
        ([("00", 15), ("01", 16)], (1, 0, 0, 1)),
        ([("00", 15), ("01", 14.5)], (1, 1, 0, 1)),
        ([("00", 25), ("01", 20.2)], (1, 1, 1, 0)),
        # On SMs of their own, or one before the other, it is another question.
        ([("00", 15), ("01", 10, {"sm_counts": (64, 68)})], ()),
        ([("00", 15), ("01", 10, {"priorities": (-1, 0)})], ()),
        ([("00", 15), ("01", 10, {"lanes": (0, 0)})], ()),
    ],
)
def test_counts_pairs(stages: list[tuple[Any, ...]], counts: tuple[int, ...]) -> None:
    entries = [
        make_stage(
            *((SMALL, f"eng{engines[0]}"), (LARGE, f"eng{engines[1]}")),
            latency_us=latency_us,
            sequential_us=20.0,
            spread_us=0.5,
            **(options[0] if options else {}),
        )
        for engines, latency_us, *options in stages
    ]
    said = describe_pairs(make_profile(*ALONE, *entries))
    assert tuple(map(int, re.findall(r"\d+", said))) == counts
