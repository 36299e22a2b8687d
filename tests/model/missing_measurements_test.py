"""What a profile lacks of a graph: the batch size, the mode, what runs without TF32, or more."""

from __future__ import annotations

import dataclasses

import pytest
from profile_values import BACKWARD, CPU, GPU, LARGE, SMALL, make_algorithm, make_profile

from tf_interop.model.missing_measurements import (
    PlanRequest,
    describe_lacking,
    describe_profile,
    profile_command,
)
from tf_interop.planning.types import GraphMode, GraphPlan, GraphPrediction
from tf_interop.profile.types import Profile

REQUEST = PlanRequest("model")
FORWARD = make_profile(make_algorithm(SMALL), make_algorithm(LARGE))
WITH_TRAINING = make_profile(make_algorithm(SMALL), make_algorithm(BACKWARD))
SMALL_OF_16 = dataclasses.replace(SMALL, image_shape=(16, 28, 28, 16))
BOTH = make_profile(*WITH_TRAINING.algorithms, make_algorithm(SMALL_OF_16))
WITHOUT_TF32 = dataclasses.replace(REQUEST, allow_tf32=False)
DETERMINISTIC = dataclasses.replace(REQUEST, deterministic=True)


@pytest.mark.parametrize(
    ("profile", "batch_size", "mode", "request_", "lacks"),
    [
        (FORWARD, 9, "inference", REQUEST, "lacks batch size 9."),
        (FORWARD, 8, "training", REQUEST, "lacks training (--training)."),
        (FORWARD, 9, "training", REQUEST, "lacks batch size 9 and training (--training)."),
        (WITH_TRAINING, 9, "training", REQUEST, "lacks batch size 9."),
        (BOTH, 16, "training", REQUEST, "lacks training (--training)."),
        (make_profile(), 8, "inference", REQUEST, "lacks every convolution."),
        # Batch size and mode are there.
        (FORWARD, 8, "inference", REQUEST, "has convolutions of this batch size"),
        (WITH_TRAINING, 8, "training", REQUEST, "has training of this batch size"),
        (FORWARD, 8, "inference", WITHOUT_TF32, "without TF32 (--tf32 off)"),
        (make_profile(*FORWARD.algorithms, device=CPU), 8, None, WITHOUT_TF32, "of another model"),
        (make_profile(make_algorithm(deterministic=False)), 8, None, DETERMINISTIC, "same bits"),
        (make_profile(make_algorithm(deterministic=False)), 8, None, REQUEST, "of another model"),
    ],
)
def test_names_what_is_lacking(
    profile: Profile, batch_size: int, mode: GraphMode, request_: PlanRequest, lacks: str
) -> None:
    prediction = GraphPrediction(1.0, 1.0, 0, 0, None, "", 3)
    graph = GraphPlan("0", 3, (), batch_size, prediction, mode=mode)
    assert lacks in describe_lacking(graph, profile, request_)
    whole = dataclasses.replace(prediction, unmeasured_count=0)
    assert not describe_lacking(dataclasses.replace(graph, prediction=whole), profile, request_)


def test_says_that_it_cannot_tell_why_a_part_is_missing() -> None:
    graph = GraphPlan("0", 3, (), 8, GraphPrediction(1.0, 1.0, 0, 0, None, "", 1))
    assert "cannot be told" in describe_lacking(graph, FORWARD, REQUEST)


def test_describes_what_a_profile_is_of() -> None:
    assert describe_profile(FORWARD) == (
        "2 convolutions, batch size 8, none of training's backward half, with TF32"
    )
    both = make_profile(*BOTH.algorithms, make_algorithm(tf32=False))
    assert describe_profile(both) == (
        "3 convolutions, batch sizes 8 and 16, some of training, with TF32 and without TF32"
    )
    assert describe_profile(make_profile(device=CPU)) == "no convolution"


def test_the_command_asks_for_what_was_asked() -> None:
    assert profile_command(REQUEST) == "tf-interop profile model -o profile.json"
    request = PlanRequest(
        "my net", (1, 8), inference=False, training=True, image_size=(32, 48), allow_tf32=False
    )
    options = "--batch 1,8 --training --no-inference --image-size 32x48"
    for device, switch in ((GPU, "--tf32 off"), (CPU, "--backend host")):
        command = profile_command(request, "p.json", make_profile(device=device))
        assert command == f"tf-interop profile 'my net' {options} {switch} -o p.json"
