"""How commands end: exit codes, errors in one line, Ctrl-C, closed pipes and full disks."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys

import click
import pytest
import tensorflow as tf
from benchmark_values import BENCHMARK
from click.testing import CliRunner
from command_line import ROOT, end_of, invoke, run_process, start_process, wait_for, words_of
from convolution_values import TINY
from profile_values import make_algorithm, make_profile
from report_values import network_plan

from tf_interop.benchmark.result import save_benchmark
from tf_interop.cli.main import cli
from tf_interop.planning.types import save_plan
from tf_interop.profile.file import save_profile
from tf_interop.profile.worklist import ConfigurationList, ListedConvolution, save_configurations


@pytest.fixture(autouse=True)
def fixture_folder() -> None:
    save_plan(network_plan(), "plan.json")
    save_profile(make_profile(make_algorithm()), "profile.json")
    save_benchmark(BENCHMARK, "results.json")


@pytest.mark.parametrize("words", ["large.json", "large.json --json", "plan.json"])
def test_a_closed_pipe_is_no_error(words: str) -> None:
    entries = (make_algorithm(algorithm=f"eng{number}") for number in range(2000))
    save_profile(make_profile(*entries), "large.json")
    reading, writing = os.pipe()
    os.close(reading)
    process = start_process("show", *words.split(), stdout=writing)
    os.close(writing)
    ended = end_of(process)
    # A shell says 141.
    assert (ended.returncode, ended.stderr) == (-signal.SIGPIPE, "")


@pytest.mark.skipif(not pathlib.Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("words", ["plan.json", "plan.json --json"])
def test_a_full_disk_is_reported_in_a_line(words: str) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123 (not a file)
        ended = end_of(start_process("show", *words.split(), stdout=full.fileno()))
    assert ended.returncode == 1
    [line] = ended.stderr.splitlines()
    assert line.startswith("Error: ") and "No space left on device" in line


def test_a_program_runs_with_stdout_closed() -> None:
    pathlib.Path("program.py").write_text("open('ran', 'x')")
    command = f"{sys.executable} -m tf_interop run --policy always program.py >&-"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(["/bin/sh", "-c", command], env=environment, check=True)
    assert pathlib.Path("ran").exists()


SLOW = """
import pathlib, time
def build():
    pathlib.Path("begun").touch()
    time.sleep(60)
"""


def test_ctrl_c_ends_quietly_and_keeps_the_old_file() -> None:
    pathlib.Path("slow_model.py").write_text(SLOW)
    pathlib.Path("plan.json").write_text("what was there")
    arguments = ["slow_model:build", "--profile", "profile.json", "-o", "plan.json", "--json"]
    process = start_process("plan", *arguments)
    wait_for(pathlib.Path("begun"), process)
    process.send_signal(signal.SIGINT)
    ended = end_of(process)
    assert (ended.returncode, ended.stdout) == (130, "")
    assert ended.stderr.splitlines()[-1] == "Stopped."
    assert "Traceback" not in ended.stderr
    assert pathlib.Path("plan.json").read_text() == "what was there"


CODE = """
import tensorflow as tf

def raises():
    raise RuntimeError("no weights here")

def nothing():
    return 5

@tf.function(input_signature=[tf.TensorSpec([1, 8, 8, 3])])
def fails_when_traced(image):
    raise TypeError("not this image")

@tf.function(input_signature=[tf.TensorSpec([1, 8, 8, 3])], autograph=False)
def fails_without_autograph(image):
    raise OSError("no labels here")
"""


# Other errors in models are in the tests of loading.
@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("analyze user_code:raises", 2, "no weights here (user_code.py, line 5)"),
        ("profile user_code:nothing -o new.json", 2, "got"),
        ("report plan.json --model user_code:raises", 2, "Invalid value for --model: "),
        ("plan user_code:fails_when_traced --profile profile.json --allow-foreign-profile "
         "-o new.json", 1, "TypeError: in user code:"),
        ("analyze user_code:fails_without_autograph", 1, "fails: OSError: no labels here"),
    ],
)  # fmt: skip
def test_an_error_in_a_model_is_reported_without_a_traceback(
    command: str, code: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(".")
    sys.modules.pop("user_code", None)
    pathlib.Path("user_code.py").write_text(CODE)
    result = CliRunner().invoke(cli, [*command.split(), "--json"])
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    assert message in " ".join(result.stderr.split())
    # Python would print any other exception.
    assert isinstance(result.exception, SystemExit)
    assert not pathlib.Path("new.json").exists()


# Other errors in files are in the tests of the formats.
@pytest.mark.parametrize(
    "reader",
    [
        "show {}",
        "profile {} -o new.json",
        "plan ResNet50 --profile {} -o new.json",
        "report {} -o new.json",
        "benchmark ResNet50 --plan {} -o new.json",
        "benchmark ResNet50 --profile {} -o new.json",
        "run --plan {} -m this",
    ],
)
def test_an_unreadable_file_is_reported_in_a_line(reader: str) -> None:
    pathlib.Path("damaged.json").write_text('{"format": ')
    result = invoke(reader.replace("{}", "damaged.json"), exit_code=1)
    assert result.stdout == ""
    [line] = result.stderr.splitlines()
    assert line.startswith("Error: ") and "damaged.json" in line
    assert not pathlib.Path("new.json").exists()


USAGE = {
    "analyse ResNet50": "analyze",
    "analyze train.py": "The file 'train.py' is no model.",
    "tune train.py": "To run a program, call tf-interop run.",
    "analyze graph.pb --training": "--training needs a Keras model",
    "tune branched_models:function --training": "--training needs a Keras model",
    "show plan.json --csv p.csv": "'plan.json' is a plan, but --csv",
    "plan M --profile x -o p --no-inference": "--no-inference alone",
    "plan branched_models:function --training --profile profile.json -o p":
        "--training needs a Keras model",
    "profile ResNet50": "--export-configurations",
    "profile ResNet50 -o p.json --stages all": "--stages",
    "profile ResNet50 -o p.json --algorithms ,": "--algorithms",
    "profile list.json -o p.json --batch 8": "--batch",
    "profile list.json -o p.json --stages x.json": "--stages",
    "benchmark ResNet50 --variants ours -o r.json": "no plan for 'ResNet50, inference",
    "benchmark ResNet50 --plan p.json --profile q.json -o r.json": "Pass only one",
    "benchmark ResNet50 --variants stock,fast -o r.json": "'fast'",
    "benchmark ResNet50 --precision half -o r.json": "'half'",
    "benchmark --policy always -o r.json": "a program after --",
    "benchmark --policy always -o r.json --": "'' is not Python",
    "benchmark --policy always -o r.json -- ./graph.pb graph.pb": "graph.pb' is not Python",
    "benchmark --policy always -o r.json -- python -c pass": "'python -c pass' is not Python",
    "benchmark --policy always -o r.json -- python -m": "'python -m' is not Python",
    "benchmark --policy always -o r.json -- python -u missing.py": "no script 'missing.py' here.",
    "benchmark --policy always -o r.json -- /no/python graph.pb": "'/no/python' cannot be run",
    f"benchmark -o r.json -- {sys.executable} graph.pb": "Pass --plan or --policy",
    f"benchmark --batch 8 --policy always -o r.json -- {sys.executable} graph.pb": "out --batch",
    f"benchmark ResNet50 --policy always -o r.json -- {sys.executable} graph.pb": "out ResNet50",
    f"benchmark --variants ours,xla -o r.json -- {sys.executable} graph.pb": "Leave out xla",
    "run missing.py": "'missing.py'",
    "run --policy always --plan p.json -m x": "--policy always",
    "run --require-plan -m x": "Pass one with --plan",
    "run --policy always --export-configurations l.json -m x": "Leave out --plan and --policy",
    "run --plan p.json --export-configurations l.json -m x": "Leave out --plan and --policy",
    "run --save-plan no/such/folder/p.json -m x": "'no/such/folder/p.json'",
}  # fmt: skip


@pytest.mark.parametrize("command", USAGE)
def test_wrong_usage_names_the_option_or_value(command: str) -> None:
    graph = tf.Graph()
    with graph.as_default():
        tf.compat.v1.placeholder(tf.float32)
    pathlib.Path("graph.pb").write_bytes(graph.as_graph_def().SerializeToString())
    pathlib.Path("train.py").touch()
    result = invoke(command, exit_code=2)
    if command.startswith("analyse") and not hasattr(click.exceptions, "NoSuchCommand"):
        pytest.skip("this version of click suggests nothing")
    assert USAGE[command] in words_of(result)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("benchmark plan.h5 --policy always -o r.json", "no file or folder 'plan.h5'. Did you"),
        ("tune folder.of/model", "no file or folder 'folder.of/model'. Check the path."),
        ("analyze plan.jsn", "no file or folder 'plan.jsn'. Did you mean 'plan.json' or"),
        ("tune ResNet50 -o /proc/plan.json", "'/proc/plan.json'"),
        ("report plan.json --model ResNet50 --png t.png", "tf-interop[report]"),
        ("analyze InceptionV3", "pip install 'tensorflow=="),
    ],
)
def test_missing_things_are_reported_before_tensorflow_is_imported(
    arguments: str, message: str
) -> None:
    ended = run_process(*arguments.split(), blocked=("tensorflow", "matplotlib"))
    assert ended.returncode in (1, 2)
    assert message in " ".join(ended.stderr.split())
    assert not pathlib.Path("r.json").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        *("show plan.json", "show profile.json", "show results.json --csv new.csv"),
        *("schema plan", "report plan.json -o page.html", "tuned"),
        "profile list.json --backend host --repetitions 1 -o new.json",
    ],
)
def test_needs_no_tensorflow_without_a_model(arguments: str) -> None:
    save_configurations(ConfigurationList((ListedConvolution(TINY),)), "list.json")
    blocked = ("tensorflow", "keras", "google", "absl")
    ended = run_process(*arguments.split(), blocked=blocked)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("arguments", ["show plan.json", "profile --help", "report plan.json"])
def test_reads_and_prints_in_any_encoding(arguments: str) -> None:
    ascii_locale = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    ended = run_process(*arguments.split(), **ascii_locale)
    assert (ended.returncode, ended.stderr, bool(ended.stdout)) == (0, "", True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-m", "no_such_module"], "No module named no_such_module"),
        (["folder"], "can't find '__main__' module in 'folder'"),
    ],
)
def test_a_missing_program_is_reported_in_a_line(arguments: list[str], message: str) -> None:
    pathlib.Path("folder").mkdir()
    ended = run_process("run", "--policy", "always", "--report", *arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.splitlines() == [
        f"Error: There is no program to run: {message}. Check its name."
    ]
