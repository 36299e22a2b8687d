"""Recognizing graphs whatever their parts are called, and in whatever order they come."""

from __future__ import annotations

import dataclasses
import random

import pytest

from tf_interop.structure import Landmark, Part, describe_difference, likeness, structure_of


def parts_of(text: str) -> list[Part]:
    """Parts from text such as `a conv; b pool a; c conv a b`: names, forms and what they read."""
    rows = [row.split() for row in text.split(";")]
    number_of = {name: number for number, (name, *_) in enumerate(rows)}
    return [
        Part(name, form, tuple((number_of[each], "0") for each in reads))
        for name, form, *reads in rows
    ]


def landmarks_of(text: str) -> tuple[Landmark, ...]:
    return structure_of(parts_of(text)).landmarks


def random_parts(seed: int) -> list[Part]:
    """Few forms and near reads, so that many parts are alike."""
    dice = random.Random(seed)
    parts = []
    for number in range(dice.randint(1, 40)):
        near = range(max(0, number - 6), number)
        reads = {
            (each, dice.choice("01")) for each in dice.sample(near, dice.randint(0, min(3, number)))
        }
        parts.append(Part(f"n{number}", dice.choice("abc"), tuple(sorted(reads))))
    return parts


def in_another_program(parts: list[Part], seed: int) -> list[Part]:
    """The same parts with other names, in another order."""
    dice = random.Random(seed)
    order = dice.sample(range(len(parts)), len(parts))
    number_of = {old: new for new, old in enumerate(order)}
    return [
        Part(
            f"x{dice.random()}",
            parts[old].form,
            tuple((number_of[each], how) for each, how in parts[old].reads),
        )
        for old in order
    ]


@pytest.mark.parametrize("seed", range(60))
def test_the_same_network_is_recognized_in_another_program(seed: int) -> None:
    parts = random_parts(seed)
    other = in_another_program(parts, seed)
    ours, theirs = structure_of(parts), structure_of(other)
    assert theirs.fingerprint == ours.fingerprint
    # The parts in the same places have the same form, and read those in the same places.
    place_of = [{name: place for place, name in enumerate(each.names)} for each in (ours, theirs)]

    def rows(parts: list[Part], places: dict[str, int]) -> dict[int, tuple[str, set[object]]]:
        return {
            places[part.name]: (
                part.form,
                {(places[parts[each].name], how) for each, how in part.reads},
            )
            for part in parts
        }

    assert rows(parts, place_of[0]) == rows(other, place_of[1])


@pytest.mark.parametrize("seed", range(30))
def test_a_changed_network_is_another(seed: int) -> None:
    parts = random_parts(seed)
    number = random.Random(seed).randrange(len(parts))
    changed = list(parts)
    changed[number] = dataclasses.replace(parts[number], form="d")
    ours, theirs = structure_of(parts), structure_of(changed)
    assert ours.fingerprint != theirs.fingerprint
    found = describe_difference(ours.landmarks, theirs.landmarks, "parts")
    assert found.startswith(f"'{parts[number].name}' is d, but")


def test_parts_that_only_later_parts_tell_apart_keep_their_places() -> None:
    parts = parts_of("in s; a c in; b c in; after_b d b; end e a after_b")
    other = parts_of("in s; u c in; v c in; after_u d u; end e v after_u")
    pairs = dict(zip(structure_of(parts).names, structure_of(other).names, strict=True))
    assert pairs == {"in": "in", "a": "v", "b": "u", "after_b": "after_u", "end": "end"}


def test_alike_parts_are_taken_in_the_order_of_their_numbers() -> None:
    structure = structure_of(parts_of("x_10 c; x_9 c; x_11 c"))
    assert structure.names == ("x_9", "x_10", "x_11")


@pytest.mark.parametrize(
    ("planned", "found", "said"),
    [
        ("a c; b c a", "a c; b d a", "'b' is d, but 'b' of the plan is c"),
        ("a c; b c a; e d b", "a c; b c a; e d a", "'e' (d) computes from other parts than 'e' of"),
        (
            "a c; b d a",
            "a c; n e a; b d n",
            "it has 2 parts, and this graph has 3; only this graph",
        ),
        (
            "a c; n e a; b d a",
            "a c; b d a",
            "it has 3 parts, and this graph has 2; this graph lack",
        ),
        ("a c; b c; e d a; f d b", "a c; b c; e d a; f d a", "its parts have other readers"),
    ],
)
def test_says_what_differs(planned: str, found: str, said: str) -> None:
    assert structure_of(parts_of(planned)).fingerprint != structure_of(parts_of(found)).fingerprint
    difference = describe_difference(landmarks_of(planned), landmarks_of(found), "parts")
    assert difference.startswith(said)


@pytest.mark.parametrize(
    ("planned", "found"),
    [
        ("a c; b d a; end e b", "x c; y d x; end f y"),  # another end
        ("a c; b c; e c", "x c; y c; z d"),  # each of alike parts is like one other
    ],
)
def test_counts_parts_that_are_alike(planned: str, found: str) -> None:
    assert likeness(landmarks_of(planned), landmarks_of(found)) == 2
