"""What a profile lacks of the graphs that are to be planned, and the command that measures it."""

from __future__ import annotations

import dataclasses
import pathlib
import shlex
from collections.abc import Collection, Iterable, Sequence

from tf_interop.convolution import ConvolutionConfiguration, ConvolutionKind
from tf_interop.plan.types import GraphPlan
from tf_interop.profile.types import Profile


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """What `tf-interop plan make` was asked to plan, as `tf-interop profile` would be.

    Attributes:
        model: what the command line calls it.
        batch_sizes: to plan for.
        inference: whether to plan inference.
        training: whether to plan a training step.
        image_size: height and width, where they were given.
        allow_tf32: TensorFlow's switch for TF32, as it will be.
        deterministic: whether op determinism will be on.
    """

    model: str
    batch_sizes: tuple[int, ...] = (1,)
    inference: bool = True
    training: bool = False
    image_size: tuple[int, int] | None = None
    allow_tf32: bool = True
    deterministic: bool = False


def profile_command(
    asked: Asked, path: pathlib.Path | str = "profile.json", profile: Profile | None = None
) -> str:
    """The command that measures what was asked for, on a shell's command line.

    Args:
        asked: what is to be planned.
        path: the profile to write, or to go on with.
        profile: what `path` holds already; None where there is none.
    """
    words = ["tf-interop", "profile", asked.model]
    if asked.batch_sizes != (1,):
        words += ["--batch", ",".join(map(str, asked.batch_sizes))]
    if asked.training:
        words.append("--training")
    if not asked.inference:
        words.append("--no-inference")
    if asked.image_size is not None:
        words += ["--image-size", "x".join(map(str, asked.image_size))]
    is_host = profile is not None and profile.device.backend == "host"
    if is_host:
        words += ["--backend", "host"]
    elif not asked.allow_tf32:
        words += ["--tf32", "off"]
    return shlex.join([*words, "-o", str(path)])


def describe_profile(profile: Profile) -> str:
    """What a profile was measured of, as far as that can be told from its convolutions."""
    configurations = {each.configuration for each in profile.algorithms}
    if not configurations:
        return "no convolution"
    batch_sizes = sorted(_batch_sizes(configurations))
    parts = [
        f"{len(configurations)} convolutions, batch {'sizes' if len(batch_sizes) > 1 else 'size'} "
        f"{_listed(map(str, batch_sizes), 'and')}"
    ]
    backward = any(map(_is_backward, configurations))
    parts.append(
        "some of a training step" if backward else "none of a training step's backward half"
    )
    if profile.device.backend == "cudnn":
        switches = {each.tf32 for each in profile.algorithms}
        words = {True: "with TF32", False: "without TF32"}
        parts.append(_listed((words[switch] for switch in sorted(switches, reverse=True)), "and"))
    return ", ".join(parts)


def missing_of(graph: GraphPlan, *, training: bool, profile: Profile, asked: Asked) -> str:
    """What a profile lacks of a graph with convolutions that it does not have, as a sentence.

    Args:
        graph: the plan of the graph, by this profile.
        training: whether it is a training step.
        profile: the measurements.
        asked: how they were to be used.
    """
    lacks = _lacking(graph.batch_size, training=training, profile=profile, asked=asked)
    if lacks:
        return f"The profile lacks {_listed(lacks, 'and')}."
    prediction = graph.prediction
    if prediction is not None and prediction.unmeasured_count >= graph.convolution_count:
        return (
            f"The profile has {'training steps' if training else 'convolutions'} of this batch "
            "size, so it is of another model, image size or dtype."
        )
    return (
        "Whether the profile is of another model, image size or dtype, or its measurement was "
        "stopped, cannot be told."
    )


def _lacking(
    batch_size: int | None, *, training: bool, profile: Profile, asked: Asked
) -> Sequence[str]:
    entries = profile.algorithms
    if not entries:
        return ["every convolution"]
    lacks = []
    # On a CPU nothing rounds to TF32.
    if profile.device.backend == "cudnn" and not asked.allow_tf32:
        entries = tuple(each for each in entries if not each.tf32)
        if not entries:
            return ["what runs without TF32 (--tf32 off)"]
    if asked.deterministic and not profile.deterministic_part.algorithms:
        return ["algorithms that gave the same bits twice"]
    configurations = {each.configuration for each in entries}
    if batch_size is not None and batch_size not in _batch_sizes(configurations):
        lacks.append(f"batch size {batch_size}")
    else:
        configurations = {
            each
            for each in configurations
            if batch_size is None or batch_size in _batch_sizes([each])
        }
    if training and not any(map(_is_backward, configurations)):
        lacks.append("the training step (--training)")
    return lacks


def _batch_sizes(configurations: Iterable[ConvolutionConfiguration]) -> Collection[int]:
    return {
        each.image_shape[0] for each in configurations if each.image_shape and each.image_shape[0]
    }


def _is_backward(configuration: ConvolutionConfiguration) -> bool:
    return configuration.kind is not ConvolutionKind.FORWARD


def _listed(words: Iterable[str], last: str) -> str:
    *before, end = words
    return f"{', '.join(before)} {last} {end}" if before else end
