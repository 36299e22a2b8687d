"""What a profile's entries may say, beyond their types and bounds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from tf_interop.convolution import (
    DTYPE_BYTES,
    SPATIAL_AXES,
    ConvolutionConfiguration,
    ConvolutionKind,
    can_merge,
)
from tf_interop.profile.entries import (
    AlgorithmFailure,
    AlgorithmMeasurement,
    Entry,
    StageMeasurement,
)
from tf_interop.stage import Stage


def check_entry(entry: Entry, place: str) -> None:
    """Checks one entry of a profile.

    Raises:
        ValueError: something is not legal; the message names the place.
    """
    if isinstance(entry, (AlgorithmMeasurement, AlgorithmFailure)):
        check_configuration(entry.configuration, f"{place}.configuration")
        _check_algorithm(entry.algorithm, entry.configuration, f"{place}.algorithm")
        return
    check_stage(entry.stage, f"{place}.stage")
    if not isinstance(entry, StageMeasurement):
        return
    operations = entry.stage.operations
    for field, values, expected in (
        ("sequential_algorithms", entry.sequential_algorithms, len(operations)),
        ("granted_sm_counts", entry.granted_sm_counts, len(entry.stage.lanes)),
    ):
        if len(values) not in (0, expected):
            raise ValueError(
                f"Expected none or {expected} values, got {len(values)} at `{place}.{field}`"
            )
    for index, algorithm in enumerate(entry.sequential_algorithms):
        at = f"{place}.sequential_algorithms[{index}]"
        _check_algorithm(algorithm, operations[index], at)


def check_stage(stage: Stage[ConvolutionConfiguration], place: str) -> None:
    """Checks lanes, configurations and algorithms of a stage.

    Raises:
        ValueError: something is not legal; the message names the place.
    """
    try:
        stage.validate()
    except ValueError as error:
        raise ValueError(f"{error}, at `{place}`") from error
    for number, lane in enumerate(stage.lanes):
        for index, step in enumerate(lane.steps):
            at = f"{place}.lanes[{number}].steps[{index}]"
            check_configuration(step.operation, f"{at}.operation")
            _check_algorithm(step.algorithm, step.operation, f"{at}.algorithm")
        if lane.merged and not can_merge(lane.operations):
            raise ValueError(
                "Expected convolutions in a merged lane that differ in filters and output channels "
                f"alone, got others at `{place}.lanes[{number}]`"
            )


def check_configuration(configuration: ConvolutionConfiguration, place: str) -> None:
    """Checks that dtype and layout are those of a stage, and that all shapes are known.

    Raises:
        ValueError: they are others, a dimension is not known or not positive, or the fields do not
            agree on how many there are; the message names the place.
    """
    for field, known in (("dtype", DTYPE_BYTES), ("layout", SPATIAL_AXES)):
        if getattr(configuration, field) not in known:
            raise ValueError(
                f"Expected {field} to be one of {', '.join(known)}, got "
                f"{getattr(configuration, field)} at `{place}.{field}`"
            )
    for field in ("strides", "dilations"):
        if min(getattr(configuration, field)) < 1:
            raise ValueError(
                f"Expected positive {field}, got {getattr(configuration, field)} at "
                f"`{place}.{field}`"
            )
    rank = configuration.spatial_rank + 2
    lengths = {"dilations": rank - 2, "layout": rank}
    for field in ("image_shape", "filter_shape", "output_shape"):
        lengths[field] = rank
        shape = getattr(configuration, field)
        if shape is None or any(size is None or size < 1 for size in shape):
            raise ValueError(
                f"Expected known and positive dimensions, got {shape} at `{place}.{field}`"
            )
    for field, length in lengths.items():
        value = getattr(configuration, field)
        if len(value) != length:
            raise ValueError(
                f"Expected {length} dimensions, as the strides have it, got {value} at "
                f"`{place}.{field}`"
            )


def _check_algorithm(
    algorithm: str | None, configuration: ConvolutionConfiguration, place: str
) -> None:
    if algorithm is None:
        return
    try:
        check_algorithm(algorithm, configuration.kind)
    except ValueError as error:
        raise ValueError(f"{error} at `{place}`") from error


LEGACY_ALGORITHMS: Mapping[ConvolutionKind, tuple[str, ...]] = MappingProxyType(
    {
        ConvolutionKind.FORWARD: (
            "IMPLICIT_GEMM",
            "IMPLICIT_PRECOMP_GEMM",
            "GEMM",
            "DIRECT",
            "FFT",
            "FFT_TILING",
            "WINOGRAD",
            "WINOGRAD_NONFUSED",
        ),
        ConvolutionKind.BACKWARD_INPUT: (
            "ALGO_0",
            "ALGO_1",
            "FFT",
            "FFT_TILING",
            "WINOGRAD",
            "WINOGRAD_NONFUSED",
        ),
        ConvolutionKind.BACKWARD_FILTER: (
            "ALGO_0",
            "ALGO_1",
            "FFT",
            "ALGO_3",
            "WINOGRAD",
            "WINOGRAD_NONFUSED",
            "FFT_TILING",
        ),
    }
)
"""cuDNN's legacy algorithms of each kind: its enumerators without their common prefix."""

HOST_ALGORITHMS: tuple[str, ...] = ("BUFFERED", "DIRECT")
"""Algorithms of the host backend."""

# An engine's global index and its knobs, as cudnn-frontend tags a plan: "eng4_k24=15_k6=0". Words
# in front name what the runner does around the algorithm. What is accepted here is exactly what
# ParseAlgorithm accepts (cc_kernels/core/cudnn/algorithm.cc).
_FORMULATION = re.compile(r"(?:split\+)?(?:nchw\+)?")
_NUMBER = r"(?:0|[1-9][0-9]*)"
_ENGINE_TAG = re.compile(rf"eng({_NUMBER})((?:_k{_NUMBER}=(?:{_NUMBER}|-[1-9][0-9]*))*)")
_KNOB = re.compile(r"_k([0-9]+)=-?([0-9]+)")
_LARGEST_INT32 = 2**31 - 1
_LARGEST_INT64 = 2**63 - 1


def check_algorithm(name: str, kind: ConvolutionKind | None = None) -> None:
    """Checks that some runner knows an algorithm of that name.

    A known name may still be one that a backend, a device or a shape cannot run; only the runner
    can tell, and it falls back then.

    Args:
        name: a legacy name or an engine tag, with `split+` and `nchw+`, in this order, in front of
            it where the runner splits or transposes around it; or a name of the host backend. An
            engine tag is `eng<index>` followed by any number of `_k<knob>=<value>`, each knob once.
        kind: where given, a legacy name must be one of this kind.

    Raises:
        ValueError: no runner knows the name; the message lists what is accepted.
    """
    tag = _without_formulation(name)
    if name in HOST_ALGORITHMS or _is_engine_tag(tag):
        return
    kinds = tuple(LEGACY_ALGORITHMS) if kind is None else (kind,)
    if any(tag in LEGACY_ALGORITHMS[each] for each in kinds):
        return
    accepted = "; ".join(f"{each.value}: {', '.join(LEGACY_ALGORITHMS[each])}" for each in kinds)
    raise ValueError(
        "Expected an algorithm that a runner knows: an engine tag such as 'eng4_k24=15_k6=0' with "
        f"each knob once, or a legacy name ({accepted}), either with 'split+' and 'nchw+' in "
        f"front, in this order; or one of the host backend ({', '.join(HOST_ALGORITHMS)}); got "
        f"{name!r}"
    )


def names_engine(name: str) -> bool:
    """Whether a name that `check_algorithm` accepts is that of an engine."""
    return _is_engine_tag(_without_formulation(name))


def _without_formulation(name: str) -> str:
    formulation = _FORMULATION.match(name)
    return name if formulation is None else name[formulation.end() :]


def _is_engine_tag(tag: str) -> bool:
    match = _ENGINE_TAG.fullmatch(tag)
    if match is None:
        return False
    index, knobs = match.groups()
    pairs = _KNOB.findall(knobs)
    return (
        len({knob for knob, _ in pairs}) == len(pairs)
        and all(int(knob) <= _LARGEST_INT32 for knob, _ in pairs)
        and all(int(value) <= _LARGEST_INT64 for _, value in pairs)
        and int(index) <= _LARGEST_INT64
    )
