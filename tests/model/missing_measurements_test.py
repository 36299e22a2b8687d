"""What a profile lacks of a graph: the batch size, the step, what runs without TF32, or more."""

from __future__ import annotations

import dataclasses

import pytest
from profile_values import BACKWARD, CPU, GPU, LARGE, SMALL, make_algorithm, make_profile

from tf_interop.model.missing_measurements import (
    Asked,
    describe_profile,
    missing_of,
    profile_command,
)
from tf_interop.plan.types import GraphPlan, GraphPrediction
from tf_interop.profile.types import Profile

ASKED = Asked("model")
FORWARD = make_profile(make_algorithm(SMALL), make_algorithm(LARGE))
WITH_TRAINING = make_profile(make_algorithm(SMALL), make_algorithm(BACKWARD))
SMALL_OF_16 = dataclasses.replace(SMALL, image_shape=(16, 28, 28, 16))


def _graph(batch_size: int, unmeasured: int = 3) -> GraphPlan:
    prediction = GraphPrediction(1.0, 1.0, 0, 0, None, "", unmeasured)
    return GraphPlan("0", 3, (), batch_size, prediction)


def _missing(
    profile: Profile = FORWARD,
    batch_size: int = 8,
    *,
    training: bool = False,
    asked: Asked = ASKED,
    unmeasured: int = 3,
) -> str:
    graph = _graph(batch_size, unmeasured)
    return missing_of(graph, training=training, profile=profile, asked=asked)


@pytest.mark.parametrize(
    ("profile", "batch_size", "training", "lacks"),
    [
        pytest.param(FORWARD, 9, False, "batch size 9", id="batch_size"),
        pytest.param(FORWARD, 8, True, "the training step (--training)", id="step"),
        pytest.param(
            FORWARD, 9, True, "batch size 9 and the training step (--training)", id="both"
        ),
        pytest.param(WITH_TRAINING, 9, True, "batch size 9", id="step_of_another_batch_size"),
        pytest.param(
            make_profile(*WITH_TRAINING.algorithms, make_algorithm(SMALL_OF_16)),
            16,
            True,
            "the training step (--training)",
            id="step_of_this_batch_size",
        ),
        pytest.param(make_profile(), 8, False, "every convolution", id="empty"),
    ],
)
def test_names_what_is_missing(
    profile: Profile, batch_size: int, training: bool, lacks: str
) -> None:
    assert _missing(profile, batch_size, training=training) == f"The profile lacks {lacks}."


def test_blames_the_model_where_batch_size_and_step_are_there() -> None:
    assert _missing().endswith("so it is of another model, image size or dtype.")
    assert "training steps" in _missing(WITH_TRAINING, training=True)


def test_says_that_it_cannot_tell_why_a_part_is_missing() -> None:
    assert _missing(unmeasured=1).endswith("was stopped, cannot be told.")


def test_names_switches_that_leave_nothing() -> None:
    without = dataclasses.replace(ASKED, allow_tf32=False)
    assert "without TF32 (--tf32 off)" in _missing(asked=without)
    assert "TF32" not in _missing(make_profile(*FORWARD.algorithms, device=CPU), asked=without)
    random = make_profile(make_algorithm(deterministic=False))
    assert "same bits" in _missing(random, asked=dataclasses.replace(ASKED, deterministic=True))
    assert "same bits" not in _missing(random)


def test_describes_what_a_profile_is_of() -> None:
    assert describe_profile(FORWARD) == (
        "2 convolutions, batch size 8, none of a training step's backward half, with TF32"
    )
    both = make_profile(
        *WITH_TRAINING.algorithms, make_algorithm(SMALL_OF_16), make_algorithm(tf32=False)
    )
    assert describe_profile(both) == (
        "3 convolutions, batch sizes 8 and 16, some of a training step, with TF32 and without TF32"
    )
    assert describe_profile(make_profile(device=CPU)) == "no convolution"


def test_the_command_asks_for_what_was_asked() -> None:
    assert profile_command(ASKED) == "tf-interop profile model -o profile.json"
    asked = Asked(
        "my net", (1, 8), inference=False, training=True, image_size=(32, 48), allow_tf32=False
    )
    options = "--batch 1,8 --training --no-inference --image-size 32x48"
    assert profile_command(asked, "p.json", make_profile(device=GPU)) == (
        f"tf-interop profile 'my net' {options} --tf32 off -o p.json"
    )
    assert profile_command(asked, "p.json", make_profile(device=CPU)) == (
        f"tf-interop profile 'my net' {options} --backend host -o p.json"
    )
