"""The command line, inside this process, and `run` in processes of its own as users have them."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import textwrap

import pytest
import tensorflow as tf
from click.testing import CliRunner, Result
from profile_values import GPU, make_profile

import tf_interop
from tf_interop.cli.main import cli
from tf_interop.model import graphs as model_graphs
from tf_interop.profile.file import save_profile
from tf_interop.runtime.plugin import get_plugin

ROOT = pathlib.Path(__file__).resolve().parents[2]

# A program as in TensorFlow's model garden: flags, app.run, TensorFlow set up by the environment.
# It says what it was given, and gives back what its argument says.
PROGRAM = """
import os
os.environ["SET_BY_THE_PROGRAM"] = "before the import"

import json
import sys
from absl import app, flags
import tensorflow as tf

flags.DEFINE_integer("exit_code", 0, "")

def main(arguments):
    image = tf.keras.Input((8, 8, 3))
    branches = [tf.keras.layers.Conv2D(4, side, padding="same")(image) for side in (3, 5)]
    model = tf.keras.Model(image, tf.keras.layers.Concatenate()(branches))
    result = tf.function(model)(tf.ones((2, 8, 8, 3)))
    print(json.dumps({
        "arguments": arguments, "argv": sys.argv, "path": sys.path[0], "name": __name__,
        "main_is_program": sys.modules["__main__"].main is main, "shape": result.shape.as_list(),
    }))
    return flags.FLAGS.exit_code

if __name__ == "__main__":
    app.run(main)
"""


@pytest.fixture(name="program")
def fixture_program(tmp_path: pathlib.Path) -> pathlib.Path:
    program = tmp_path / "folder" / "program.py"
    program.parent.mkdir()
    program.write_text(PROGRAM)
    return program


def _run(
    *arguments: str, cwd: pathlib.Path, library: pathlib.Path | None = None
) -> subprocess.CompletedProcess[str]:
    library = library or get_plugin().library.build_info.path
    return subprocess.run(
        [sys.executable, "-m", "tf_interop", "run", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TF_INTEROP_LIBRARY": str(library)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def _errors(process: subprocess.CompletedProcess[str]) -> list[str]:
    """What was written to stderr, TensorFlow's own messages aside."""
    return [
        line
        for line in process.stderr.splitlines()
        if "0000 00:00:" not in line and "absl::InitializeLog" not in line
    ]


def _analyze(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["analyze", *arguments])


def test_run_makes_stages_in_an_unchanged_program(
    program: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    process = _run(
        "--policy", "always", "--report", "--save-plan", "plan.json",
        "folder/program.py", "--exit_code=7", "--", "--report", "-m",
        cwd=tmp_path,
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
    assert "stages run: 1" in process.stderr
    [graph] = tf_interop.load_plan(tmp_path / "plan.json").graphs
    [stage] = graph.stages
    assert len(stage.lanes) == 2

    # The plan that was saved is a plan for the same program, run as a module.
    process = _run(
        "--plan", "../plan.json", "--report", "-m", "program", "--exit_code", "0", "--", "-m",
        cwd=program.parent,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    said = json.loads(process.stdout)
    assert said["argv"] == [str(program), "--exit_code", "0", "--", "-m"]
    assert (said["path"], said["name"]) == (str(program.parent), "__main__")
    assert "tf_interop is on, policy profiled" in process.stderr
    assert "stages run: 1" in process.stderr


def test_run_imports_tensorflow_when_the_program_does(tmp_path: pathlib.Path) -> None:
    (tmp_path / "program.py").write_text(
        textwrap.dedent(
            """
            import sys
            assert "tensorflow" not in sys.modules
            import tensorflow
            import tf_interop
            print(tf_interop.status().policy)
            """
        )
    )
    process = _run("--policy", "always", "program.py", cwd=tmp_path)
    assert (process.returncode, process.stdout) == (0, "always\n"), process.stderr


def test_run_passes_on_what_the_program_raises(tmp_path: pathlib.Path) -> None:
    (tmp_path / "program.py").write_text("raise OSError(32, 'of the program')")
    process = _run("--policy", "always", "--report", "program.py", cwd=tmp_path)
    assert process.returncode == 1
    assert "Traceback" in process.stderr
    assert process.stderr.endswith("BrokenPipeError: [Errno 32] of the program\n")


def test_run_says_that_nothing_will_change(tmp_path: pathlib.Path) -> None:
    (tmp_path / "program.py").write_text("print('ran')")
    process = _run("program.py", cwd=tmp_path)
    assert (process.returncode, process.stdout) == (0, "ran\n")
    [line] = _errors(process)
    assert "tf_interop changes nothing" in line


def test_run_fails_where_there_is_no_plan_to_save(tmp_path: pathlib.Path) -> None:
    (tmp_path / "program.py").write_text("import tensorflow")
    process = _run("--policy", "always", "--save-plan", "plan.json", "program.py", cwd=tmp_path)
    assert process.returncode == 1
    assert _errors(process) == ["Error: Expected stages to save in 'plan.json', got none."]
    assert not (tmp_path / "plan.json").exists()


def test_run_fails_at_the_import_where_the_library_is_missing(tmp_path: pathlib.Path) -> None:
    (tmp_path / "program.py").write_text(
        "try:\n    import tensorflow\nexcept Exception:\n    pass\nprint('went on')"
    )
    process = _run(
        "--policy", "always", "--report", "program.py", cwd=tmp_path, library=tmp_path / "none.so"
    )
    assert (process.returncode, process.stdout) == (1, "")
    [line] = _errors(process)
    assert line.startswith(f"Error: Expected the compiled library {tmp_path / 'none.so'}")


def test_run_refuses_a_damaged_plan_in_one_line(program: pathlib.Path) -> None:
    plan = program.with_name("plan.json")
    plan.write_text("{")
    process = _run("--plan", "plan.json", "program.py", cwd=program.parent)
    assert (process.returncode, process.stdout) == (1, "")
    [line] = _errors(process)
    assert line.startswith("Error: Expected JSON in plan 'plan.json'")


def test_run_refuses_a_foreign_profile_by_its_own_option(program: pathlib.Path) -> None:
    elsewhere = dataclasses.replace(GPU, backend="host", name="Another CPU")
    save_profile(make_profile(device=elsewhere), program.with_name("profile.json"))
    process = _run("--profile", "profile.json", "program.py", cwd=program.parent)
    assert (process.returncode, process.stdout) == (1, "")
    errors = [line for line in _errors(process) if line.startswith("Error: ")]
    [line] = errors
    assert "Expected a profile of what this process runs on" in line
    assert line.endswith(
        "Measure anew here, or pass --allow-foreign-profile to go by this one all the same."
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.py"], "Expected a script at 'missing.py', got none"),
        (["--policy", "sometimes", "x.py"], "'sometimes' is not one of"),
        (["--policy", "always", "--plan", "p.json", "-m", "x"], "no --plan and no --profile"),
        (["--save-plan", "no/such/folder/p.json", "-m", "x"], "Expected a folder that exists"),
        (["--no-such-option", "x.py"], "No such option"),
        ([], "Missing argument 'PROGRAM'"),
    ],
)
def test_run_refuses_wrong_usage(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(cli, ["run", *arguments])
    assert result.exit_code == 2
    assert message in result.output


def test_analyze_prints_a_table() -> None:
    result = _analyze("MobileNet", "--image-size", "32", "--own-graph-only")
    assert result.exit_code == 0, result.output
    assert "mobilenet_1.00_32, inference, batch 2" in result.stdout
    assert "the function's own graph" in result.stdout
    assert "TensorFlow's own optimizations" not in result.stdout


def test_analyze_prints_json_alone() -> None:
    result = _analyze("MobileNet", "--image-size", "32x64", "--batch", "3", "--training", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["format"] == "tf_interop.analysis"
    assert document["name"].endswith(", one training step with SGD, batch 3")
    assert [graph["counts_by_op"]["DepthwiseConv2dNative"] for graph in document["graphs"]] == [
        13, 13,
    ]  # fmt: skip


def test_analyze_runs_a_function_only_where_told_to(tmp_path: pathlib.Path) -> None:
    image = tf.keras.Input((8, 8, 3))
    model = tf.keras.Model(image, tf.keras.layers.Conv2D(4, 3)(image))
    model.export(tmp_path / "exported", verbose=False)
    path = str(tmp_path / "exported")
    for options, graph_count in (([], 1), (["--as-grappler-hands-it-over"], 2)):
        result = _analyze(path, "--json", *options)
        assert result.exit_code == 0, result.output
        document = json.loads(result.stdout)
        assert len(document["graphs"]) == graph_count
        assert document["name"] == path
        assert bool(document["notes"]) == (graph_count == 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ResNet5"], "Did you mean 'ResNet50'"),
        (["ResNet50", "--image-size", "64x"], "Expected a size such as 224 or 299x299, got '64x'"),
        (["ResNet50", "--batch", "0"], "0 is not in the range"),
        (["graph.pb", "--training"], "training=True with a Keras model only"),
    ],
)
def test_analyze_refuses_wrong_usage(
    arguments: list[str], message: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    graph = tf.Graph()
    with graph.as_default():
        tf.compat.v1.placeholder(tf.float32)
    (tmp_path / "graph.pb").write_bytes(graph.as_graph_def().SerializeToString())
    result = _analyze(*arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_analyze_reports_errors_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise tf_interop.errors.LibraryError("Expected a library, got none.")

    monkeypatch.setattr(model_graphs, "get_plugin", fail)
    result = _analyze("MobileNet", "--image-size", "32", "--as-grappler-hands-it-over")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines()[-1] == "Error: Expected a library, got none."


def test_says_its_version_and_how_it_is_used() -> None:
    version = CliRunner().invoke(cli, ["--version"])
    assert version.output == f"tf-interop, version {tf_interop.__version__}\n"
    for command in ("analyze", "run"):
        text = CliRunner().invoke(cli, [command, "--help"]).output
        assert f"\n    tf-interop {command} " in text
        assert "Exit codes:" in text
    # What the command cannot do.
    assert "jit_compile=False" in text
