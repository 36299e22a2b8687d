"""Seeds the random numbers of a program that is run unedited.

Python imports a module of this name at its start, from PYTHONPATH. The program draws its weights
and its synthetic images without a seed; to compare two runs of it, both have to draw the same.
"""

import random
from typing import Any

import wrapt

_SEED = 1


def _seed_tensorflow(tensorflow: Any) -> None:
    tensorflow.random.set_seed(_SEED)


random.seed(_SEED)
wrapt.register_post_import_hook(_seed_tensorflow, "tensorflow")
