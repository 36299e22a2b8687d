"""`tf-interop run` in processes of its own."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess

import pytest
from command_line import run_process
from plan_values import PLAN

import tf_interop
from tf_interop.planning.types import save_plan
from tf_interop.profile.worklist import load_configurations
from tf_interop.runtime.plugin import get_plugin
from tf_interop.tensorflow_messages import LOG_LEVEL

# A program in the style of TensorFlow's model garden: flags, app.run, an environment variable.
PROGRAM = """
import os
import sys
assert "tensorflow" not in sys.modules
os.environ["SET_BY_THE_PROGRAM"] = "before the import"

import json
from absl import app, flags
import branched_models
import tensorflow as tf

flags.DEFINE_integer("exit_code", 0, "")

def main(arguments):
    result = tf.function(branched_models.build_branches())(tf.ones((2, 8, 8, 3)))
    print(json.dumps({
        "arguments": arguments, "argv": sys.argv, "path": sys.path[0], "name": __name__,
        "main_is_program": sys.modules["__main__"].main is main, "shape": result.shape.as_list(),
    }))
    return flags.FLAGS.exit_code

if __name__ == "__main__":
    app.run(main)
"""


@pytest.fixture(name="program")
def fixture_program() -> pathlib.Path:
    program = pathlib.Path("folder/program.py").resolve()
    program.parent.mkdir()
    program.write_text(PROGRAM)
    return program


def _run(*arguments: str, **options: str) -> subprocess.CompletedProcess[str]:
    library = str(get_plugin().library.build_info.path)
    return run_process("run", *arguments, **{"TF_INTEROP_LIBRARY": library, **options})


def _errors(process: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines on stderr without TensorFlow's own messages."""
    return [
        line
        for line in process.stderr.splitlines()
        if "0000 00:00:" not in line and "absl::InitializeLog" not in line
    ]


def test_run_makes_stages_in_an_unchanged_program(
    program: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(LOG_LEVEL)
    process = _run(
        "--policy", "always", "--report", "--save-plan", "plan.json",
        "folder/program.py", "--exit_code=7", "--", "--report", "-m",
    )  # fmt: skip
    assert process.returncode == 7, process.stderr
    assert json.loads(process.stdout) == {
        "arguments": ["folder/program.py", "--report", "-m"],
        "argv": ["folder/program.py", "--exit_code=7", "--", "--report", "-m"],
        "path": str(program.parent),
        "name": "__main__",
        "main_is_program": True,
        "shape": [2, 8, 8, 8],
    }
    assert "tf_interop is on, policy always" in process.stderr
    # A program keeps TensorFlow's messages, which depend on the machine.
    assert re.search(r"port\.cc|0000 00:00:", process.stderr)
    assert "stages run: 1" in process.stderr
    [graph] = tf_interop.load_plan("plan.json").graphs
    [stage] = graph.stages
    assert len(stage.stage.lanes) == 2

    # The saved plan also fits the program as a module.
    process = _run(
        "--plan", "../plan.json", "--require-plan", "--report",
        "-m", "program", "--exit_code", "0", "--", "-m",
        folder=program.parent,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    assert "did not use" not in process.stderr
    said = json.loads(process.stdout)
    assert said["argv"] == [str(program), "--exit_code", "0", "--", "-m"]
    assert (said["path"], said["name"]) == (str(program.parent), "__main__")
    assert "tf_interop is on, policy profiled" in process.stderr
    assert "stages run: 1" in process.stderr


def test_run_exports_configurations_of_folded_graphs(program: pathlib.Path) -> None:
    program.write_text(
        PROGRAM.replace("build_branches", "build_normalized").replace("8, 8", "16, 16")
    )
    process = _run("--export-configurations", "list.json", "folder/program.py", "--exit_code=0")
    assert process.returncode == 0, process.stderr
    listed = load_configurations("list.json")
    assert sum(each.count for each in listed.convolutions) == 4
    assert all(each.origins[0].startswith("folder/program.py, graph 1") for each in listed.stages)
    assert {len(each.stage.lanes) for each in listed.stages} >= {2}
    fused = {each.configuration.fused_ops for each in listed.convolutions}
    assert fused == {("BiasAdd", "Relu"), ("BiasAdd",)}


LEANS_ON_PYTHON = r"""
import atexit, os, pickle, signal
class Kept:
    pass
os.chdir("/")
open(__file__).close()
atexit.register(lambda: pickle.dumps(Kept()))
print("\u00e9", signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN)
"""


def test_run_gives_a_script_what_python_gives() -> None:
    pathlib.Path("program.py").write_text(LEANS_ON_PYTHON)
    process = _run("--policy", "always", "program.py", PYTHONIOENCODING="ascii:backslashreplace")
    assert (process.returncode, process.stdout, process.stderr) == (0, "\\xe9 True\n", "")


CONVOLVES = """
import branched_models, tensorflow as tf
tf.function(branched_models.build_branches())(tf.ones((2, 8, 8, 3)))
"""


@pytest.mark.parametrize(
    ("program", "arguments", "exit_code", "output", "message"),
    [
        (CONVOLVES, "--plan plan.json", 0, "",
         "tf_interop did not use 'plan.json': The plan is for another network"),
        (CONVOLVES, "--plan plan.json --require-plan", 1, "",
         "tf_interop did not use 'plan.json': The plan is for another network"),
        ("import tensorflow", "--policy always --trace new.json", 1, "", "'new.json'"),
        ("print('ran')", "", 0, "ran\n", "--policy always"),
        ("raise OSError(32, 'of the program')", "--policy always --report", 1, "",
         "BrokenPipeError: [Errno 32] of the program"),
    ],
)  # fmt: skip
def test_run_reports_errors_in_a_line(
    program: str, arguments: str, exit_code: int, output: str, message: str
) -> None:
    pathlib.Path("program.py").write_text(program)
    save_plan(PLAN, "plan.json")
    process = _run(*arguments.split(), "program.py")
    assert (process.returncode, process.stdout) == (exit_code, output)
    errors = [line for line in _errors(process) if not line.startswith("WARNING:absl")]
    if "Traceback" not in process.stderr:
        assert len(errors) == bool(message)
        assert not message or errors[0].startswith("Error: ") == bool(exit_code)
    assert not message or message in errors[-1]
    assert not pathlib.Path("new.json").exists()


def test_run_fails_at_the_import_without_the_library() -> None:
    pathlib.Path("program.py").write_text(
        "try:\n    import tensorflow\nexcept Exception:\n    pass\nprint('went on')"
    )
    process = _run("--policy", "always", "--report", "program.py", TF_INTEROP_LIBRARY="none.so")
    assert (process.returncode, process.stdout) == (1, "")
    [line] = _errors(process)
    assert line.startswith("Error: ") and "none.so" in line
