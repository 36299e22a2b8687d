"""Errors about malformed programs name the place."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from stage_program import (
    Document,
    arguments,
    assert_refused,
    lane,
    operation,
    program,
    schedule,
)

PLAIN = {"strides": [1, 1, 1, 1], "padding": "SAME"}
IMAGE = np.ones([2, 5, 5, 2], np.float32)
FILTER = np.ones([3, 3, 2, 2], np.float32)
INPUTS = [IMAGE, FILTER, FILTER]
FIRST = operation("first", "Conv2D", ["inputs:0", "inputs:1"], **PLAIN)
SECOND = operation("second", "Conv2D", ["inputs:0", "inputs:2"], **PLAIN)


def document() -> Document:
    return program([FIRST, SECOND], kept_inputs=[1, 2])


def refuses(conv_stage: Any, changed: Document, *words: str, **changes: Any) -> None:
    whole = arguments(INPUTS, [], changed, **changes)
    assert_refused(conv_stage, "ConvStage", *words, **whole)


# A path into the document, and a value for it.
HUGE, NESTED = 10**30, [[[[[]]]]]
PLACES: list[tuple[str, Any]] = [
    ("0 batch_size", 0),
    ("0 batch_size", 0.5),
    ("0 batch_size", HUGE),
    ("0 stage", []),
    ("0 stage lanes", []),
    ("0 stage lanes 1 steps", []),
    ("0 stage lanes 1 steps 0 operation", 0),
    ("0 stage lanes 1 steps 0 operation", 2),
    ("0 stage lanes 1 steps 0 operation", NESTED),
    ("0 stage lanes 1 steps 0 algorithm", 4),
    ("0 stage lanes 1 priority", True),
    ("0 stage lanes 1 merged", 1),
]


def keys_of(path: str) -> list[str | int]:
    return [int(key) if key.isdigit() else key for key in path.split()]


def inside(whole: Any, path: list[str | int]) -> Any:
    return functools.reduce(lambda each, key: each[key], path, whole)


def place_of(path: list[str | int]) -> str:
    return "$" + "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path)


@pytest.mark.parametrize(("path", "value"), PLACES)
def test_names_the_place(conv_stage: Any, path: str, value: Any) -> None:
    changed = document()
    *holder, key = keys_of(path)
    inside(changed["schedules"], holder)[key] = value
    refuses(conv_stage, changed, place_of(holder))


def test_requires_every_field(conv_stage: Any) -> None:
    for path in map(keys_of, ("0", "0 stage", "0 stage lanes 0", "0 stage lanes 0 steps 0")):
        for key in inside(document()["schedules"], path):
            missing = document()
            del inside(missing["schedules"], path)[key]
            refuses(conv_stage, missing, f"{place_of(path)}:", f"'{key}'")


def odd(*operands: str, **fields: Any) -> Callable[[Document], None]:
    """Replaces the second operation."""

    def set_operation(changed: Document) -> None:
        read = operands or ("inputs:0", "inputs:1")
        described = {"name": "odd", "op": "Conv2D", "operands": read, **PLAIN}
        changed["steps"][1] = operation(**(described | fields)).SerializeToString()

    return set_operation


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (odd(op="MatMul"), ["op", "MatMul"]),
        (odd(dtype=tf.int32), ["T", "int32"]),
        (odd(dtype=tf.half), ["inputs:0", "half", "float"]),
        (odd("inputs:0"), ["2 operands", "got 1"]),
        *(
            (odd("inputs:0", operand), [f"'{operand}'"])
            for operand in (
                *("inputs:3", "inputs:-1", "other:0", "inputs:" + "9" * 40),
                # A part of an operand, another output, and the step itself.
                *("inputs:0:0", "steps:0", "steps:0:1", "steps:0:-1", "steps:1:0"),
            )
        ),
        (odd("inputs:0", "inputs:1", "inputs:2", op="Conv2DBackpropInput"), ["0 sizes"]),
        # A step of another lane.
        (odd("steps:0:0", "inputs:1"), ["steps:0", "'first'"]),
        (odd(strides=[1, 0, 1, 1]), ["strides", "[1, 0, 1, 1]"]),
        (odd(strides=[1] * 3), ["strides", "[1, 1, 1]"]),
        (odd(padding="ODD"), ["ODD"]),
        (odd(data_format="HWNC"), ["data_format", "HWNC"]),
        (odd(op="Conv3D"), ["5 strides", "[1, 1, 1, 1]"]),
        (odd(op="Conv3D", data_format="NHWC"), ["NDHWC", "NHWC"]),
        (odd(op="Conv3D", strides=[1] * 5, padding="EXPLICIT"), ["padding", "EXPLICIT"]),
        (odd(op="_FusedConv2D", fused_ops=["Odd"]), ["fused_ops", "[Odd]"]),
    ],
)
def test_names_the_step(
    conv_stage: Any, damage: Callable[[Document], None], words: list[str]
) -> None:
    damaged = document()
    damage(damaged)
    refuses(conv_stage, damaged, "step '", *words)


MERGED = lane(0, 1, merged=True)


@pytest.mark.parametrize(
    ("operands", "lanes", "words"),
    [
        (["inputs:0", "inputs:2"], [lane(0), lane(0, 1)], ["$[1].stage.lanes"]),
        (["inputs:0", "inputs:2"], [lane(0)], ["$[1].stage.lanes"]),
        (["steps:0:0", "inputs:2"], [lane(1, 0)], ["step 'second'", "steps:0", "'first'"]),
        (["steps:0:0", "inputs:2"], [lane(0), lane(1)], ["step 'second'", "steps:0", "'first'"]),
        (["inputs:1", "inputs:2"], [MERGED], ["lanes[0]", "merged lane"]),
        (["steps:0:0", "inputs:2"], [MERGED], ["lanes[0]", "merged lane"]),
        (["inputs:0", "steps:0:0"], [MERGED], ["lanes[0]", "merged lane"]),
    ],
)
def test_every_schedule_has_each_step_once_after_those_that_it_reads(
    conv_stage: Any, operands: list[str], lanes: list[Document], words: list[str]
) -> None:
    second = operation("second", "Conv2D", operands, **PLAIN)
    schedules = [schedule(lane(0, 1), batch_size=2), schedule(*lanes, batch_size=3)]
    refuses(conv_stage, program([FIRST, second], *schedules), *words)


@pytest.mark.parametrize("batch_sizes", [[None, 3], [3, None], [3, 3], [3, 2], [0, 2]])
def test_batch_sizes_ascend(conv_stage: Any, batch_sizes: list[int | None]) -> None:
    lanes = [lane(0), lane(1)]
    several = program([FIRST, SECOND], *(schedule(*lanes, batch_size=b) for b in batch_sizes))
    refuses(conv_stage, several, "$[", "batch_size")


def test_outputs_have_the_types_of_the_node(conv_stage: Any) -> None:
    refuses(conv_stage, document(), "step 'second'", "half", Tout=[tf.float32, tf.half])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steps": [b"\xff", b"\xff"]}, ["NodeDef at step 0"]),
        ({"results": ["steps:0:0"]}, ["2 results", "got 1"]),
        *(
            ({"results": ["steps:0:0", text]}, [f"got '{text}'"])
            for text in ("steps:0:0", "steps:2:0", "steps:1:1", "inputs:0", "steps:-1:0", "1")
        ),
        ({"kept_inputs": [3]}, ["below 3, got 3"]),
        ({"kept_inputs": [-1]}, ["below 3, got -1"]),
    ],
)
def test_refuses_other_attributes(
    conv_stage: Any, changes: dict[str, Any], words: list[str]
) -> None:
    assert_refused(conv_stage, *words, **arguments(INPUTS, [], document(), **changes))


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "null", "NaN", "[1e999]", '"\\ud800"', "\x00", "[" * 100_000, "["],
    ids=lambda text: repr(text[:9]),
)
def test_refuses_what_is_no_document_with_schedules(conv_stage: Any, text: str) -> None:
    refuses(conv_stage, document(), "ConvStage schedules", schedules=text)
