"""Errors about malformed programs name the place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from stage_program import Document, arguments, assert_refused, lane, operation, program, schedule

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


# Fields of the second lane or of the schedule, wrong values, and the place that the error names.
PLACES: list[tuple[str, Any, str]] = [
    ("batch_size", 1.5, "$[0].batch_size"),
    ("batch_size", 10**30, "$[0].batch_size"),
    ("stage", [], "$[0].stage"),
    ("lanes", [], "$[0].stage.lanes"),
    ("steps", [], "$[0].stage.lanes[1].steps"),
    ("operation", 0, "$[0].stage.lanes[1].steps[0]"),
    ("operation", 2, "$[0].stage.lanes[1].steps[0].operation"),
    ("operation", [[[]]], "$[0].stage.lanes[1].steps[0].operation"),
    ("algorithm", 4, "$[0].stage.lanes[1].steps[0].algorithm"),
    ("priority", True, "$[0].stage.lanes[1].priority"),
    ("merged", 1, "$[0].stage.lanes[1].merged"),
]


def holder_of(field: str, whole: Document) -> Document:
    """The object with a field, in the first schedule and the last of the lanes."""
    schedules = whole["schedules"][0]
    last = schedules["stage"]["lanes"][-1]
    objects = (schedules, schedules["stage"], last, last["steps"][0])
    return next(each for each in objects if field in each)


@pytest.mark.parametrize(("field", "value", "place"), PLACES)
def test_names_the_place(conv_stage: Any, field: str, value: Any, place: str) -> None:
    changed = document()
    holder_of(field, changed)[field] = value
    refuses(conv_stage, changed, f"{place}:")
    missing = document()
    del holder_of(field, missing)[field]
    refuses(conv_stage, missing, f"'{field}'")


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


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steps": [b"\xff", b"\xff"]}, ["NodeDef at step 0"]),
        ({"results": ["steps:0:0"]}, ["2 results", "got 1"]),
        *(
            ({"results": ["steps:0:0", text]}, [f"got '{text}'"])
            for text in ("steps:0:0", "steps:2:0", "steps:1:1", "inputs:0", "steps:-1:0", "1")
        ),
        ({"Tout": [tf.float32, tf.half]}, ["step 'second'", "half"]),
        ({"kept_inputs": [3]}, ["below 3, got 3"]),
        ({"kept_inputs": [-1]}, ["below 3, got -1"]),
    ],
)
def test_refuses_other_attributes(
    conv_stage: Any, changes: dict[str, Any], words: list[str]
) -> None:
    assert_refused(conv_stage, *words, **arguments(INPUTS, [], document(), **changes))


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", "[1e999]", "[" * 100_000])
def test_refuses_what_is_no_document_with_schedules(conv_stage: Any, text: str) -> None:
    refuses(conv_stage, document(), "ConvStage schedules", schedules=text)
