"""Every command has `--json`, which prints only the document of docs/reference.md."""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import sys

import pytest
from click.testing import CliRunner
from command_line import COMMANDS, ROOT, invoke, run_process
from convolution_values import TINY
from parallel_values import DEVICE_GRAPH
from plan_values import measured_step
from report_values import network_plan

from tf_interop.cli import doctor
from tf_interop.cli.doctor_checks import problem
from tf_interop.cli.main import cli
from tf_interop.parallel.costs.devices import save_device_graph
from tf_interop.planning.types import GraphPlan, Plan, save_plan
from tf_interop.profile.worklist import ConfigurationList, ListedConvolution, save_configurations
from tf_interop.tensorflow_messages import LOG_LEVEL

PAGE = ROOT / "docs" / "reference.md"

# Building the model prints: with Python, to the file descriptor, and from a child process.
MODULE = """
import os
import subprocess
import branched_models

def build():
    print("printed")
    os.write(1, b"written\\n")
    subprocess.run(["echo", "echoed"], check=True)
    return branched_models.build_branches()
"""
HOST = "--backend host --repetitions 1"
ARGUMENTS = {
    "doctor": "",
    "tune": "branched_models:build_other --training --budget 0.1s --fresh --no-compare-xla",
    "tuned": "",
    "analyze": "result_model:build",
    "profile": f"list.json {HOST} -o new_profile.json",
    "plan": "result_model:build --profile host_profile.json -o new_plan.json",
    "parallelize": "branched_models:build_other --device-graph devices.json --explain all",
    "show": "plan.json",
    "schema": "plan",
    "report": "plan.json",
    "benchmark": "branched_models:build_other --variants stock --repetitions 1 --steps 1 "
    "--seconds 0 --warmup-steps 0 -o new_results.json",
}


def _rows(heading: str) -> dict[str, str]:
    """The table with this heading: the rest of each row, by its first column."""
    rows = {}
    for line in PAGE.read_text().split(heading, 1)[1].splitlines()[2:]:
        if not line.startswith("|"):
            break
        name, rest = line.strip("|").split("|", 1)
        rows[name.strip().strip("`")] = rest
    return rows


def _fields(text: str) -> set[str]:
    """The fields that the page lists, or the fields of the schema that it refers to."""
    schema = re.search(r"`(schema \w+)`", text)
    if schema is None:
        return set(re.findall(r"`([^`]+)`", text))
    document = json.loads(CliRunner().invoke(cli, schema[1].split()).stdout)
    return set(document["$defs"][document["$ref"].rpartition("/")[2]]["properties"])


DOCUMENTS = _rows("| command | prints an object with |")
PARTS = _rows("| list | each object has |")


@pytest.fixture(scope="module", name="folder")
def fixture_folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("results")
    (folder / "result_model.py").write_text(MODULE)
    save_plan(network_plan(), folder / "plan.json")
    save_device_graph(DEVICE_GRAPH, folder / "devices.json")
    (folder / "tf_interop" / "tuned").mkdir(parents=True)
    tuned = GraphPlan("f", (), measured=measured_step(1.5))
    save_plan(Plan((tuned,)), folder / "tf_interop" / "tuned" / "key.json")
    save_configurations(ConfigurationList((ListedConvolution(TINY),)), folder / "list.json")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", list(sys.path))
        invoke(f"profile result_model:build {HOST} -o host_profile.json")
    return folder


@pytest.fixture(name="work")
def fixture_work(
    folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> pathlib.Path:
    """A copy of the folder, as the working directory."""
    work = tmp_path / "work"
    shutil.copytree(folder, work)
    monkeypatch.chdir(work)
    monkeypatch.setenv("XDG_CACHE_HOME", str(work))
    return work


def test_every_command_has_json_and_is_documented_and_tested() -> None:
    # The output of `run` is the program's.
    commands = COMMANDS.keys() - {"", "run"}
    for name in commands:
        assert any("--json" in parameter.opts for parameter in COMMANDS[name].params), name
    assert set(DOCUMENTS) == commands == set(ARGUMENTS)


@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.usefixtures("work")
def test_prints_one_document_with_the_fields_on_the_page(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    finding = problem("does not work", "fix it", "a part")
    monkeypatch.setattr(doctor, "run_group", lambda group: [finding])
    result = CliRunner().invoke(cli, [name, *ARGUMENTS[name].split(), "--json"])
    assert result.exit_code == (1 if name == "doctor" else 0), result.stderr
    document = json.loads(result.stdout)
    if isinstance(document, list):
        assert "a list" in DOCUMENTS[name]
        return
    assert set(document) == _fields(DOCUMENTS[name])
    for part, fields in PARTS.items():
        of, _, command_name = part.replace("`", "").partition(" of ")
        if command_name == name:
            assert document[of], part
            assert {frozenset(each) for each in document[of]} == {frozenset(_fields(fields))}


@pytest.mark.usefixtures("work")
def test_the_output_of_a_model_is_not_in_the_document_and_tensorflow_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(LOG_LEVEL)
    process = run_process("analyze", "result_model:build", "--json")
    assert json.loads(process.stdout)["convolution_count"]
    assert {"printed", "written", "echoed"} <= set(process.stderr.splitlines())
    assert not re.search(r"port\.cc|0000 00:00:", process.stderr)
