"""Names of the algorithms that can be pinned: the one list of what a plan or a profile may say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from tf_interop.know.convolution import ConvolutionKind

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

HOST_ALGORITHMS: tuple[str, ...] = ("IM2COL_GEMM", "DIRECT")
"""Algorithms of the host backend, for every kind."""

# An engine's global index and its knobs, as cudnn-frontend tags a plan: "eng4_k24=15_k6=0". Words
# in front name what the runner does around the engine (see cc_kernels/core/cudnn/algorithm.h).
_NUMBER = r"(?:0|[1-9][0-9]*)"
_ENGINE_TAG = re.compile(
    rf"(?:pad\+)?(?:split\+)?(?:nchw\+)?eng{_NUMBER}((?:_k{_NUMBER}=-?{_NUMBER})*)"
)
_KNOB = re.compile(r"_k([0-9]+)=")


def check_algorithm(name: str, kind: ConvolutionKind | None = None) -> None:
    """Checks that some runner knows an algorithm of that name.

    A known name may still be one that a backend, a device or a shape cannot run; only the runner
    can tell, and it falls back then.

    Args:
        name: a legacy name, a name of the host backend, or an engine tag `eng<index>` followed by
            any number of `_k<knob>=<value>`, each knob once, with `pad+`, `split+` and `nchw+`, in
            this order, in front of it where the runner pads, splits or transposes around it.
        kind: where given, a legacy name must be one of this kind.

    Raises:
        ValueError: no runner knows the name; the message lists what is accepted.
    """
    if name in HOST_ALGORITHMS or _is_engine_tag(name):
        return
    kinds = tuple(LEGACY_ALGORITHMS) if kind is None else (kind,)
    if any(name in LEGACY_ALGORITHMS[each] for each in kinds):
        return
    accepted = "; ".join(f"{each.value}: {', '.join(LEGACY_ALGORITHMS[each])}" for each in kinds)
    raise ValueError(
        "Expected an algorithm that a runner knows: an engine tag such as 'eng4_k24=15_k6=0' with "
        f"each knob once, a legacy name ({accepted}) or one of the host backend "
        f"({', '.join(HOST_ALGORITHMS)}); got {name!r}"
    )


def _is_engine_tag(name: str) -> bool:
    match = _ENGINE_TAG.fullmatch(name)
    if match is None:
        return False
    knobs = _KNOB.findall(match.group(1))
    return len(knobs) == len(set(knobs))
