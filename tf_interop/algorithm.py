"""Names of the algorithms that can be pinned: the one list of what a plan or a profile may say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from tf_interop.convolution import ConvolutionKind

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
