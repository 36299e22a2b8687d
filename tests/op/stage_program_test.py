"""What the op says of programs that are not as they should be: an error that names the place."""

from __future__ import annotations

import copy
import functools
import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from stage_program import (
    REFUSED,
    Document,
    arguments,
    assert_refused,
    encoded,
    in_graph,
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
AFTER_FIRST = operation("second", "Conv2D", ["steps:0", "inputs:2"], **PLAIN)


def document() -> Document:
    return program([FIRST, SECOND], constant_inputs=[1, 2])


def as_text(changed: Document | str) -> str:
    return changed if isinstance(changed, str) else json.dumps(changed)


def test_takes_a_program(conv_stage: Any) -> None:
    for result in in_graph(conv_stage, **arguments(INPUTS, [], document())):
        np.testing.assert_array_equal(result, tf.nn.conv2d(IMAGE, FILTER, 1, "SAME"))


def refuses(conv_stage: Any, changed: Document | str, *words: str, **changes: Any) -> None:
    whole = arguments(INPUTS, [], document()) | {"program": as_text(changed)} | changes
    assert_refused(conv_stage, "ConvStage", *words, **whole)


# Each is a path into the document, what comes to stand there, and what the error says of it.
HUGE, NESTED = 10**30, [[[[[]]]]]
PLACES: list[tuple[str, Any, str]] = [
    ("version", 2, "2"),
    ("version", "1", "'1'"),
    ("version", None, "null"),
    ("version", HUGE, "1e+30"),
    ("operations", {}, "an object"),
    ("operations", [], "a list of 0"),
    ("operations 0", 7, "7"),
    ("operations 0", "!", "'!'"),
    ("operations 1", "/w==", "'/w=='"),  # the byte 255 is no NodeDef
    ("outputs", [0], "a list of 1"),
    ("outputs 1", 0, "0"),
    ("outputs 1", 2, "2"),
    ("outputs 1", -1, "-1"),
    ("outputs 1", 0.5, "0.5"),
    ("outputs 1", HUGE, "1e+30"),
    ("constant_inputs", None, "null"),
    ("constant_inputs 1", 3, "3"),
    ("constant_inputs 0", 2, "2"),  # twice
    ("schedules", [], "a list of 0"),
    ("schedules", NESTED, "a list of 1"),
    ("schedules 0 batch_size", 0, "0"),
    ("schedules 0 batch_size", 1.5, "1.5"),
    ("schedules 0 stage", [], "a list of 0"),
    ("schedules 0 stage lanes", None, "null"),
    ("schedules 0 stage lanes", [], "a list of 0"),
    ("schedules 0 stage lanes 1 steps", [], "a list of 0"),
    ("schedules 0 stage lanes 1 steps 0 operation", 0, "0"),
    ("schedules 0 stage lanes 1 steps 0 operation", 2, "2"),
    ("schedules 0 stage lanes 1 steps 0 operation", "1", "'1'"),
    ("schedules 0 stage lanes 1 steps 0 algorithm", 4, "4"),
    ("schedules 0 stage lanes 1 priority", HUGE, "1e+30"),
    ("schedules 0 stage lanes 1 priority", True, "true"),
    ("schedules 0 stage lanes 1 sm_count", -8, "-8"),
    ("schedules 0 stage lanes 1 merged", 1, "1"),
    ("schedules 0 stage lanes 1 merged", True, "an object"),  # of one step
]


def keys_of(path: str) -> list[str | int]:
    return [int(key) if key.isdigit() else key for key in path.split()]


def inside(whole: Any, path: list[str | int]) -> Any:
    return functools.reduce(lambda each, key: each[key], path, whole)


def place_of(path: list[str | int]) -> str:
    return "$" + "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path)


@pytest.mark.parametrize(("path", "value", "got"), PLACES)
def test_names_the_place(conv_stage: Any, path: str, value: Any, got: str) -> None:
    changed = document()
    *holder, key = keys_of(path)
    inside(changed, holder)[key] = value
    refuses(conv_stage, changed, place_of(holder), f"got {got}")


def test_every_field_is_needed_and_there_are_no_others(conv_stage: Any) -> None:
    for path in map(keys_of, ("", "schedules 0", "schedules 0 stage lanes 0")):
        for key in inside(document(), path):
            missing = document()
            del inside(missing, path)[key]
            refuses(conv_stage, missing, f"{place_of(path)}:", f"'{key}'")
        further = document()
        inside(further, path)["further"] = 1
        refuses(conv_stage, further, f"{place_of(path)}:", "further")


def lanes_of(*lanes: Document) -> Callable[[Document], None]:
    return lambda changed: changed.update(schedules=[schedule(*lanes)])


def odd(*operands: str, **fields: Any) -> Callable[[Document], None]:
    """Puts another operation in the place of the second."""

    def set_operation(changed: Document) -> None:
        read = operands or ("inputs:0", "inputs:1")
        described = {"name": "odd", "op": "Conv2D", "operands": read, **PLAIN}
        changed["operations"][1] = encoded(operation(**(described | fields)))

    return set_operation


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (odd(name="first"), ["step 'first'", "names"]),
        (odd(op="MatMul"), ["step 'odd'", "op", "MatMul"]),
        (odd(dtype=tf.int32), ["step 'odd'", "T", "int32"]),
        (odd(dtype=tf.half), ["step 'odd'", "inputs:0", "half", "float"]),
        (odd("inputs:0"), ["step 'odd'", "2 operands", "got 1"]),
        *(
            (odd("inputs:0", operand), ["step 'odd'", f"'{operand}'"])
            for operand in ("sizes:0", "inputs:3", "inputs:-1", "steps:2", "inputs:" + "9" * 40)
        ),
        (odd("other:0", "inputs:1"), ["step 'odd'", "'other:0'"]),
        (odd(op="Conv2DBackpropInput"), ["step 'odd'"]),
        # Steps of other lanes, later ones, itself.
        (odd("steps:0", "inputs:1"), ["step 'odd'", "steps:0", "'first'"]),
        (odd("steps:1", "inputs:1"), ["step 'odd'", "steps:1", "'odd'"]),
        (lanes_of(lane(0), lane(0, 1)), ["schedules[0].stage.lanes[1].steps[0].operation"]),
        (lanes_of(lane(0)), ["schedules[0].stage.lanes", "'second'"]),
    ],
)
def test_names_the_step(
    conv_stage: Any, damage: Callable[[Document], None], words: list[str]
) -> None:
    damaged = document()
    damage(damaged)
    refuses(conv_stage, damaged, *words)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"strides": [1, 0, 1, 1]}, ["strides", "[1, 0, 1, 1]"]),
        ({"strides": [1] * 3}, ["strides", "[1, 1, 1]"]),
        ({"padding": "ODD"}, ["ODD"]),
        ({"data_format": "HWNC"}, ["data_format", "HWNC"]),
        ({"op": "Conv3D"}, ["5 strides", "[1, 1, 1, 1]"]),
        ({"op": "Conv3D", "data_format": "NHWC"}, ["NDHWC", "NHWC"]),
        ({"op": "Conv3D", "strides": [1] * 5, "padding": "EXPLICIT"}, ["padding", "EXPLICIT"]),
        ({"op": "_FusedConv2D", "fused_ops": ["Odd"]}, ["fused_ops", "[Odd]"]),
    ],
)
def test_the_op_names_the_attribute(
    conv_stage: Any, fields: dict[str, Any], words: list[str]
) -> None:
    damaged = document()
    odd(**fields)(damaged)
    refuses(conv_stage, damaged, "step 'odd'", *words)


@pytest.mark.parametrize("lanes", [[lane(1, 0)], [lane(0), lane(1)]], ids=["later", "another lane"])
def test_a_step_reads_earlier_ones_of_its_lane_in_every_schedule(
    conv_stage: Any, lanes: list[Document]
) -> None:
    schedules = [schedule(lane(0, 1), batch_size=2), schedule(*lanes, batch_size=3)]
    chain = program([FIRST, AFTER_FIRST], *schedules)
    refuses(conv_stage, chain, "step 'second'", "steps:0", "'first'")


def test_steps_that_read_each_other_are_refused(conv_stage: Any) -> None:
    first = operation("first", "Conv2D", ["steps:1", "inputs:1"], **PLAIN)
    cycle = program([first, AFTER_FIRST], schedule(lane(0, 1)))
    refuses(conv_stage, cycle, "step 'first'", "steps:1", "'second'")


@pytest.mark.parametrize("batch_sizes", [[None, 3], [3, None], [3, 3], [3, 2], [0, 2]])
def test_batch_sizes_ascend(conv_stage: Any, batch_sizes: list[int | None]) -> None:
    lanes = [lane(0), lane(1)]
    several = program([FIRST, SECOND], *(schedule(*lanes, batch_size=b) for b in batch_sizes))
    refuses(conv_stage, several, "$.schedules[", "batch_size")


def test_outputs_are_of_the_types_that_the_node_says(conv_stage: Any) -> None:
    refuses(conv_stage, document(), "step 'second'", "half", Tout=[tf.float32, tf.half])


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "null", "NaN", '{"version": NaN}', '{"version": 1e999}', '"\\ud800"'),
        *("\x00", "[" * 5000, '{"more":' + "[" * 100_000),
    ],
)
def test_refuses_what_is_no_document(conv_stage: Any, text: str) -> None:
    refuses(conv_stage, text, "ConvStage program")


def test_damaged_documents_never_end_the_process(conv_stage: Any) -> None:
    """Truncated documents, and such with other values in them: each is refused, or computes."""
    generator = random.Random(7)
    text = json.dumps(document())
    damaged = [text[: generator.randrange(len(text))] for _ in range(40)]
    for _ in range(120):
        at = generator.randrange(len(text))
        damaged.append(text[:at] + generator.choice('0123456789-.eE{}[]",: n') + text[at + 1 :])
    values = [None, True, -1, 0, 3, 0.5, HUGE, -HUGE, "", "x", [], {}, NESTED, FIRST.name]
    for _ in range(240):
        changed = copy.deepcopy(document())
        holder: Any = changed
        while True:
            keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
            key = generator.choice(keys)
            is_leaf = not isinstance(holder[key], dict | list) or not holder[key]
            if is_leaf or generator.random() < 0.3:
                break
            holder = holder[key]
        holder[key] = generator.choice(values)
        damaged.append(json.dumps(changed))
    refused = 0
    for each in damaged:
        try:
            in_graph(conv_stage, **(arguments(INPUTS, [], document()) | {"program": each}))
        except REFUSED:
            refused += 1
    assert refused > len(damaged) / 2
