"""Places of a measured stage: nodes of a merged lane have one merge key, whatever is offered."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from tf_interop.plan.lane_places import find_places

Offered = list[tuple[str, str | None]]


def is_filled(
    places: tuple[int, ...],
    wanted: list[str],
    lanes: list[int],
    merged: list[bool],
    offered: Offered,
) -> bool:
    keys = [
        {offered[each][1] for each, of in zip(places, lanes, strict=True) if of == lane}
        for lane, is_merged in enumerate(merged)
        if is_merged
    ]
    return [offered[place][0] for place in places] == wanted and all(
        len(each) == 1 and None not in each for each in keys
    )


@st.composite
def stages(draw: st.DrawFn) -> tuple[list[str], list[int], list[bool], Offered]:
    kinds = st.sampled_from("ab")
    keys = st.sampled_from([None, "x", "y"])
    offered = draw(st.lists(st.tuples(kinds, keys), min_size=1, max_size=5))
    wanted = draw(st.permutations([kind for kind, _ in offered]))
    lanes = list(itertools.accumulate((draw(st.booleans()) for _ in offered[1:]), initial=0))
    merged = [lanes.count(lane) > 1 for lane in range(lanes[-1] + 1)]
    return wanted, lanes, merged, offered


@settings(max_examples=500, deadline=None)
@given(stages())
def test_finds_places_wherever_there_are_any(
    stage: tuple[list[str], list[int], list[bool], Offered],
) -> None:
    places = find_places(*stage)
    if places is None:
        assert not any(
            is_filled(order, *stage) for order in itertools.permutations(range(len(stage[3])))
        )
    else:
        assert sorted(places) == list(range(len(stage[3])))
        assert is_filled(places, *stage)


def test_takes_the_earliest_that_there_are() -> None:
    offered: Offered = [("a", None), ("a", "x"), ("b", None), ("a", "x"), ("a", "x")]
    assert find_places(["a", "b", "a", "a", "a"], [0, 1, 2, 2, 3], [False] * 4, offered) == (
        0, 2, 1, 3, 4
    )  # fmt: skip
    merged = [False, False, True, False]
    assert find_places(["a", "b", "a", "a", "a"], [0, 1, 2, 2, 3], merged, offered) == (
        0, 2, 1, 3, 4
    )  # fmt: skip


def test_a_merged_lane_leaves_to_others_what_it_does_not_need() -> None:
    # The second merged lane needs the key that the first one would take first.
    offered: Offered = [("a", "x"), ("a", "x"), ("b", "x"), ("a", "y"), ("a", "y")]
    places = find_places(["a", "a", "a", "b", "a"], [0, 0, 1, 1, 2], [True, True, False], offered)
    assert places == (3, 4, 0, 2, 1)


def test_finds_none_for_other_nodes() -> None:
    assert find_places(["a", "b"], [0, 1], [], [("a", None), ("a", None)]) is None
    assert find_places(["a"], [0], [], [("a", None), ("a", None)]) is None
