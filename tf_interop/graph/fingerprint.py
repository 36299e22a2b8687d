"""Recognizes a graph by its convolutions."""

from __future__ import annotations

import collections
import hashlib
import json
import operator
import re
from collections.abc import Iterable, Sequence

from tf_interop.convolution import ConvolutionNode

_fields_covered = operator.attrgetter(
    *("op", "dtype", "layout", "filter_shape", "strides", "dilations", "padding"),
    *("explicit_paddings", "fused_ops", "leaky_relu_alpha"),
)
# What inlining a call puts before the names of a function's nodes.
_CALL_SCOPE = re.compile(r"(?:Stateful)?PartitionedCall(?:_\d+)?/")
# The model's own scope, with the number that tells its traces apart.
_MODEL_SCOPE = re.compile(r"(gradient_tape/)?([^/]+?)(?:_\d+)?(?=/)")


def canonical_names(names: Iterable[str]) -> dict[str, str]:
    """Names of convolutions without what differs between traces of one model.

    `StatefulPartitionedCall/googlenet_1/conv1/Relu` under `fit` is `googlenet_2/conv1/Relu` in a
    function of the user's own, and both are `googlenet/conv1/Relu` here. Where that would make two
    names one (two models in one graph), names stay as they are.
    """
    canonical = {name: _canonical_name(name) for name in names}
    if max(collections.Counter(canonical.values()).values(), default=1) > 1:
        return {name: name for name in canonical}
    return canonical


def fingerprint_convolutions(convolutions: Sequence[ConvolutionNode]) -> str:
    """Digest of what a plan for these convolutions depends on.

    Covered are canonical names, op types, dtypes, layouts, filter shapes, strides, dilations,
    paddings and fused operations. Batch and image sizes are not: one plan holds for several. Nor
    are the order of the convolutions and their devices.

    Returns:
        16 hexadecimal digits, the same in every process and release.
    """
    canonical = canonical_names(convolution.name for convolution in convolutions)
    rows = sorted(
        ((canonical[each.name], _fields_covered(each.configuration)) for each in convolutions),
        key=lambda row: row[0],
    )
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]


def _canonical_name(name: str) -> str:
    while match := _CALL_SCOPE.match(name):
        name = name[match.end() :]
    return _MODEL_SCOPE.sub(r"\1\2", name, count=1)
