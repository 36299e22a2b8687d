"""Every command has `--json`, which prints what docs/command_line.md says, and nothing else."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from benchmark_values import BENCHMARK
from click.testing import CliRunner
from convolution_values import TINY
from paper_problem import FFT, FFT_KERNEL, GEMM, GEMM_KERNEL, SM
from profile_values import GPU, KERNEL, LARGE, SMALL, make_algorithm, make_profile, make_stage
from report_values import network_plan

from tf_interop.benchmark.file import save_benchmark
from tf_interop.cli import doctor as doctor_command
from tf_interop.cli.main import cli
from tf_interop.cli.result import Result, prints_result
from tf_interop.doctor.finding import problem
from tf_interop.plan.file import save_plan
from tf_interop.profile.file import save_profile
from tf_interop.profile.worklist import ConfigurationList, ListedConvolution
from tf_interop.profile.worklist_file import save_configurations
from tf_interop.runtime.plugin import get_plugin

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "command_line.md"

# It prints while it is built: with Python, from C, and from a process of its own.
MODULE = """
import os
import subprocess
import tensorflow as tf

def build():
    print("printed")
    os.write(1, b"written\\n")
    subprocess.run(["echo", "echoed"], check=True)
    image = tf.keras.Input((8, 8, 3))
    branches = [tf.keras.layers.Conv2D(4, side, padding="same")(image) for side in (3, 5)]
    return tf.keras.Model(image, tf.keras.layers.Concatenate()(branches), name="branches")

def quiet():
    image = tf.keras.Input((8, 8, 3))
    return tf.keras.Model(image, tf.keras.layers.Conv2D(4, 3)(image))
"""
PROGRAM = """
import tensorflow as tf
print("of the program")
image = tf.keras.Input((8, 8, 3))
branches = [tf.keras.layers.Conv2D(4, side, padding="same")(image) for side in (3, 5)]
tf.function(tf.keras.Model(image, branches))(tf.ones((2, 8, 8, 3)))
"""
HOST = ("--backend", "host", "--repetitions", "1")
ARGUMENTS: dict[str, tuple[str, ...]] = {
    "doctor": (),
    "analyze": ("answered_model:build", "--own-graph-only"),
    "profile measure": ("list.json", *HOST, "-o", "new_profile.json"),
    "profile show": ("profile.json",),
    "profile check": ("profile.json",),
    "profile merge": ("profile.json", "profile.json", "-o", "merged.json"),
    "profile diff": ("profile.json", "host_profile.json"),
    "profile schema": (),
    "profile import-ncu": ("profile.json", "ncu.csv", "-o", "imported.json"),
    "plan make": (
        "answered_model:build", "--profile", "host_profile.json", "-o", "new_plan.json",
    ),
    "plan explain": ("plan.json",),
    "plan check": ("plan.json",),
    "plan compare-model": ("profile.json",),
    "plan schema": (),
    "report": ("plan.json",),
    "benchmark measure": (
        "answered_model:quiet", "--variants", "stock", "--repetitions", "1", "--steps", "1",
        "--seconds", "0", "--warmup-steps", "0", "-o", "new_results.json",
    ),
    "benchmark show": ("results.json",),
    "benchmark schema": (),
    "run": ("--policy", "always", "program.py"),
}  # fmt: skip
NEEDS_PROCESS = {"run"}


def _commands(command: click.Command, *names: str) -> Iterator[tuple[str, click.Command]]:
    """All commands that are no groups."""
    if not isinstance(command, click.Group):
        yield " ".join(names), command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        yield from _commands(inner, *names, name)


COMMANDS = dict(_commands(cli))


def _rows(heading: str) -> dict[str, str]:
    """The table of the page that has this heading: the first column, and the rest."""
    lines = PAGE.read_text().split(heading, 1)[1].splitlines()[2:]
    rows = {}
    for line in lines:
        if not line.startswith("|"):
            break
        name, rest = line.strip("|").split("|", 1)
        rows[name.strip().strip("`")] = rest
    return rows


def _fields(text: str) -> set[str]:
    schema = re.search(r"\((schemas/\w+\.schema\.json)\)", text)
    if schema is None:
        return set(re.findall(r"`([^`]+)`", text))
    document = json.loads((PAGE.parent / schema[1]).read_text())
    return set(document["$defs"][document["$ref"].rpartition("/")[2]]["properties"])


DOCUMENTS = _rows("| command | prints an object with |")
PARTS = _rows("| of | each has |")


@pytest.fixture(scope="module", name="folder")
def fixture_folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("answers")
    (folder / "answered_model.py").write_text(MODULE)
    (folder / "program.py").write_text(PROGRAM)
    kernels = {GEMM: GEMM_KERNEL, FFT: FFT_KERNEL}
    entries = [
        make_algorithm(each, algorithm, latency_us=100.0, kernels=(kernel,))
        for each in (SMALL, LARGE)
        for algorithm, kernel in kernels.items()
    ]
    entries.append(make_algorithm(LARGE, "GEMM", kernels=(KERNEL,)))
    stage = make_stage((SMALL, GEMM), (LARGE, GEMM), concurrent_us=160.0)
    device = dataclasses.replace(GPU, sm_count=60, sm_limits=SM)
    save_profile(make_profile(*entries, stage, device=device), folder / "profile.json")
    save_plan(network_plan(), folder / "plan.json")
    save_benchmark(BENCHMARK, folder / "results.json")
    listed = ConfigurationList((ListedConvolution(TINY),), ())
    save_configurations(listed, folder / "list.json")
    columns = ("ID", "Kernel Name", "Grid Size", "Block Size", "sm__throughput.avg")
    rows = (columns, ("", "", "", "", "%"), ("0", KERNEL.name, KERNEL.grid, KERNEL.block, "25"))
    text = "".join(",".join(f'"{cell}"' for cell in row) + "\n" for row in rows)
    (folder / "ncu.csv").write_text(text)
    before = pathlib.Path.cwd()
    os.chdir(folder)
    try:
        arguments = ["profile", "answered_model:build", *HOST, "-o", "host_profile.json"]
        result = CliRunner().invoke(cli, arguments)
    finally:
        os.chdir(before)
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture(name="work")
def fixture_work(
    folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> pathlib.Path:
    """A copy of the folder, as the working directory."""
    work = tmp_path / "work"
    shutil.copytree(folder, work)
    monkeypatch.chdir(work)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{work}")
    return work


def _start(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tf_interop", *arguments],
        env={**os.environ, "TF_INTEROP_LIBRARY": str(get_plugin().library.build_info.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_every_command_has_json_and_is_documented_and_tested() -> None:
    assert [name for name, command in COMMANDS.items() if not _has_json(command)] == []
    assert set(DOCUMENTS) == set(COMMANDS)
    assert set(ARGUMENTS) == set(COMMANDS)


def _has_json(command: click.Command) -> bool:
    return any("--json" in parameter.opts for parameter in command.params)


@pytest.mark.parametrize("name", COMMANDS)
def test_prints_one_document_with_the_fields_that_the_page_says(
    name: str, work: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finding = problem("a part", "does not work", "mend it")
    monkeypatch.setattr(doctor_command, "examine", lambda say: (finding,))
    # Of `run` what follows the program is the program's.
    arguments = [*name.split(), "--json", *ARGUMENTS[name]]
    if name in NEEDS_PROCESS:
        process = _start(*arguments)
        exit_code, text, errors = process.returncode, process.stdout, process.stderr
    else:
        result = CliRunner().invoke(cli, arguments)
        exit_code, text, errors = result.exit_code, result.stdout, result.stderr
    assert exit_code == (1 if name == "doctor" else 0), errors
    document = json.loads(text)
    assert set(document) == _fields(DOCUMENTS[name])
    for part, fields in PARTS.items():
        of, _, command = part.replace("`", "").partition(" of ")
        if command == name:
            assert document[of], part
            for each in document[of]:
                assert set(each) == _fields(fields), part


@pytest.mark.parametrize(
    ("command", "file"),
    [("profile show", "profile"), ("plan explain", "plan"), ("benchmark show", "results")],
)
def test_a_document_that_is_a_file_is_all_of_it(
    command: str, file: str, work: pathlib.Path
) -> None:
    text = CliRunner().invoke(cli, [*command.split(), f"{file}.json", "--json"]).stdout
    assert json.loads(text) == json.loads((work / f"{file}.json").read_text())


def test_stdout_is_empty_after_an_error(work: pathlib.Path) -> None:
    # The model is built, and printed on, before it is found that no GPU's profile fits.
    options = ("--profile", "profile.json", "-o", "new_plan.json", "--json")
    process = _start("plan", "answered_model:build", *options)
    assert (process.returncode, process.stdout) == (1, ""), process.stderr
    assert process.stderr.splitlines()[-1].startswith("Error: Expected")
    assert "echoed" in process.stderr.splitlines()


def test_what_a_model_prints_is_not_in_the_document(work: pathlib.Path) -> None:
    process = _start("analyze", "answered_model:build", "--own-graph-only", "--json")
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout)["format"] == "tf_interop.analysis"
    lines = process.stderr.splitlines()
    assert {"printed", "written", "echoed"} <= set(lines)


def test_what_a_program_prints_is_not_in_the_record(work: pathlib.Path) -> None:
    process = _start("run", "--policy", "always", "--json", "--save-run", "run.json", "program.py")
    assert process.returncode == 0, process.stderr
    record = json.loads(process.stdout)
    assert record == json.loads((work / "run.json").read_text())
    assert record["graphs"][0]["stage_count"] == 1
    assert "of the program" in process.stderr.splitlines()


def test_a_program_that_fails_has_a_record_and_keeps_its_code(work: pathlib.Path) -> None:
    (work / "program.py").write_text(PROGRAM + "\nraise SystemExit(7)")
    process = _start("run", "--policy", "always", "--json", "program.py")
    assert process.returncode == 7, process.stderr
    assert json.loads(process.stdout)["stages_run"] == 1


def test_json_of_a_device_that_failed_is_printed_with_its_code() -> None:
    @click.command()
    @prints_result
    def command() -> Result:
        print("meanwhile")
        return Result({"value": float("inf")}, lambda: click.echo("for people"), exit_code=3)

    result = CliRunner().invoke(command, ["--json"])
    assert (result.exit_code, json.loads(result.stdout)) == (3, {"value": None})
    assert result.stderr == "meanwhile\n"
    result = CliRunner().invoke(command)
    assert (result.exit_code, result.stdout) == (3, "meanwhile\nfor people\n")


def test_stdout_is_itself_again_afterwards() -> None:
    program = (
        "import os\nfrom tf_interop.cli.result import stdout_on_stderr\n"
        "print('one')\n"
        "try:\n    with stdout_on_stderr():\n"
        "        print('two'); os.write(1, b'three\\n'); 1 / 0\n"
        "except ZeroDivisionError:\n    print('four')\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", program],
        # Of an environment that turns buffers off a test would see nothing.
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert process.stdout == "one\nfour\n"
    assert sorted(process.stderr.split()) == ["three", "two"]


def test_says_on_a_terminal_that_it_reads(work: pathlib.Path) -> None:
    terminal, side_of_process = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "tf_interop", "profile", "check", "profile.json", "--json"],
        stdout=subprocess.PIPE,
        stderr=side_of_process,
        env={**os.environ, "TERM": "xterm"},
    )
    output, _ = process.communicate(timeout=60)
    os.close(side_of_process)
    assert b"Reading" in os.read(terminal, 4096)
    os.close(terminal)
    assert json.loads(output)["profile"] == "profile.json"
