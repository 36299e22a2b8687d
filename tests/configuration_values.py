"""A small list of configurations."""

from __future__ import annotations

import dataclasses

from convolution_values import TINY

from tf_interop.profile.worklist import (
    ConfigurationList,
    ListedConvolution,
    ListedStage,
)
from tf_interop.stage import Stage, Step

SMALL = dataclasses.replace(TINY, filter_shape=(1, 1, 3, 4))
LARGE = dataclasses.replace(SMALL, filter_shape=(5, 5, 3, 4))
LIST = ConfigurationList(
    (ListedConvolution(SMALL, 2, ("a",)), ListedConvolution(LARGE, 1, ("a", "b"))),
    (ListedStage(Stage.side_by_side((Step(0), Step(1))), origins=("a, level",)),),
    made_with={"tensorflow": "2.21.0"},
)
