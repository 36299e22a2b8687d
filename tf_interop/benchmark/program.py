"""The command line of a program of one's own: whether it can be compared, and with the plugin on.

python -X dev train.py --epochs 1        stock TensorFlow
python -X dev -m tf_interop run --plan plan.json train.py --epochs 1
"""

from __future__ import annotations

import pathlib
import subprocess
import sys
from collections.abc import Sequence

from tf_interop.errors import BenchmarkError


def with_plugin(words: Sequence[str], options: Sequence[str]) -> list[str]:
    """The command line that runs a program with the plugin on; `options` are those of `run`."""
    python, program = _split(words)
    return [*python, "-m", "tf_interop", "run", *options, *program]


def check_program(words: Sequence[str]) -> None:
    """Looks at a command line without running the program.

    Raises:
        BenchmarkError: it does not run a script that is there, or a module, by the Python that
            tf_interop is installed for.
    """
    if not words:
        raise BenchmarkError(
            "There is no program after --. Name it as you run it: -- python train.py"
        )
    python, program = _split(words)
    if "python" not in pathlib.Path(words[0]).name:
        raise BenchmarkError(
            f"The program must be run by Python, such as -- python train.py, got '{words[0]}'. "
            "Put the name of the Python before it."
        )
    if not program or program[0] in ("-c", "-") or program == ["-m"]:
        raise BenchmarkError(
            f"Expected a script, or -m and a module, after '{' '.join(python)}', got "
            f"'{' '.join(program[:1]) or 'nothing'}'. Put the program in a file."
        )
    if program[0] != "-m" and not pathlib.Path(program[0]).exists():
        raise BenchmarkError(
            f"There is no script at '{program[0]}'. Check the path. For a module put -m before it."
        )
    ask = [words[0], "-c", "import sys; print(sys.prefix)"]
    try:
        prefix = subprocess.run(ask, capture_output=True, text=True, check=False).stdout.strip()
    except OSError as error:
        raise BenchmarkError(
            f"There is no Python at '{words[0]}': {error.strerror}. Check the path."
        ) from error
    if prefix != sys.prefix:
        raise BenchmarkError(
            f"The program must use the Python that tf_interop runs in, {sys.executable}, but "
            f"'{words[0]}' is of {prefix or 'nowhere'}. Activate that environment, or name its "
            "Python."
        )


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Python with its own options, and the program with its arguments."""
    at = 1
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-m", "-c", "-"):
        at += 2 if words[at] in ("-W", "-X") else 1
    return list(words[:at]), list(words[at:])
