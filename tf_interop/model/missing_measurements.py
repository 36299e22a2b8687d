"""What a profile lacks of the graphs that are to be planned, and the command that measures it."""

from __future__ import annotations

import dataclasses
import pathlib
import shlex
from collections.abc import Iterable

from tf_interop.convolution import ConvolutionConfiguration, ConvolutionKind, batch_size_of
from tf_interop.planning.types import GraphPlan
from tf_interop.profile.types import Profile


@dataclasses.dataclass(frozen=True, slots=True)
class PlanRequest:
    """What `tf-interop plan make` is to plan, as `tf-interop profile` would measure it.

    Attributes:
        model: what the command line calls it.
        batch_sizes: to plan for.
        inference: whether to plan inference.
        training: whether to plan training.
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
    request: PlanRequest, path: pathlib.Path | str = "profile.json", profile: Profile | None = None
) -> str:
    """The command that measures what is to be planned, on a shell's command line.

    Args:
        request: what is to be planned.
        path: the profile to write, or to go on with.
        profile: what `path` holds already; None where there is none.
    """
    words = ["tf-interop", "profile", request.model]
    if request.batch_sizes != (1,):
        words += ["--batch", ",".join(map(str, request.batch_sizes))]
    if request.training:
        words.append("--training")
    if not request.inference:
        words.append("--no-inference")
    if request.image_size is not None:
        words += ["--image-size", "x".join(map(str, request.image_size))]
    if profile is not None and profile.device.backend == "host":
        words += ["--backend", "host"]
    elif not request.allow_tf32:
        words += ["--tf32", "off"]
    return shlex.join([*words, "-o", str(path)])


def describe_profile(profile: Profile) -> str:
    """What a profile was measured of, as far as that can be told from its convolutions."""
    configurations = {each.configuration for each in profile.algorithms}
    if not configurations:
        return "no convolution"
    batch_sizes = sorted(_batch_sizes(configurations))
    parts = [
        f"{len(configurations)} convolutions",
        f"batch {'sizes' if len(batch_sizes) > 1 else 'size'} {_listed(map(str, batch_sizes))}",
        "some of training" if _has_backward(configurations) else "none of training's backward half",
    ]
    if profile.device.backend == "cudnn":
        switches = {each.tf32 for each in profile.algorithms}
        words = {True: "with TF32", False: "without TF32"}
        parts.append(_listed(words[switch] for switch in sorted(switches, reverse=True)))
    return ", ".join(parts)


def describe_lacking(graph: GraphPlan, profile: Profile, request: PlanRequest) -> str:
    """What a profile lacks of a graph, as a sentence; empty where it lacks nothing.

    Args:
        graph: the plan of the graph, by this profile.
        profile: the measurements.
        request: how they were to be used.
    """
    prediction = graph.prediction
    if prediction is None or not prediction.unmeasured_count:
        return ""
    lacks = _lacking(graph, profile, request)
    if lacks:
        return f"The profile lacks {_listed(lacks)}."
    if prediction.unmeasured_count >= graph.convolution_count:
        return (
            f"The profile has {'training' if graph.mode == 'training' else 'convolutions'} of this "
            "batch size, so it is of another model, image size or dtype."
        )
    return (
        "Whether the profile is of another model, image size or dtype, or its measurement was "
        "stopped, cannot be told."
    )


def _lacking(graph: GraphPlan, profile: Profile, request: PlanRequest) -> list[str]:
    entries = profile.algorithms
    if not entries:
        return ["every convolution"]
    # On a CPU nothing rounds to TF32.
    if profile.device.backend == "cudnn" and not request.allow_tf32:
        entries = tuple(each for each in entries if not each.tf32)
        if not entries:
            return ["what runs without TF32 (--tf32 off)"]
    if request.deterministic and not profile.deterministic_part.algorithms:
        return ["algorithms that gave the same bits twice"]
    lacks = []
    configurations = {each.configuration for each in entries}
    if graph.batch_size is not None:
        of_size = {each for each in configurations if batch_size_of([each]) == graph.batch_size}
        if not of_size:
            lacks.append(f"batch size {graph.batch_size}")
        configurations = of_size or configurations
    if graph.mode == "training" and not _has_backward(configurations):
        lacks.append("training (--training)")
    return lacks


def _batch_sizes(configurations: Iterable[ConvolutionConfiguration]) -> set[int]:
    sizes = (batch_size_of([each]) for each in configurations)
    return {size for size in sizes if size is not None}


def _has_backward(configurations: Iterable[ConvolutionConfiguration]) -> bool:
    return any(each.kind is not ConvolutionKind.FORWARD for each in configurations)


def _listed(words: Iterable[str]) -> str:
    *before, end = words
    return f"{', '.join(before)} and {end}" if before else end
