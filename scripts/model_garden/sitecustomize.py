"""Seeds the random numbers of an unchanged program, so that its runs can be compared.

Python imports a module of this name from PYTHONPATH when it starts. The program draws its weights
and synthetic images without a seed.
"""

import random
from typing import Any

import wrapt

_SEED = 1


def _seed_tensorflow(tensorflow: Any) -> None:
    tensorflow.random.set_seed(_SEED)


random.seed(_SEED)
wrapt.register_post_import_hook(_seed_tensorflow, "tensorflow")
