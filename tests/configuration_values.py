"""A small list of configurations."""

from __future__ import annotations

import dataclasses

from convolution_values import TINY

from tf_interop.profile.worklist import (
    ConfigurationList,
    ListedConvolution,
    ListedStage,
)

SMALL = dataclasses.replace(TINY, filter_shape=(1, 1, 3, 4))
LARGE = dataclasses.replace(SMALL, filter_shape=(5, 5, 3, 4))
LIST = ConfigurationList(
    (ListedConvolution(SMALL, 2, ("a",)), ListedConvolution(LARGE, 1, ("a", "b"))),
    (ListedStage((0, 1), (0, 1), origins=("a, level",)),),
    made_with={"tensorflow": "2.21.0"},
)
