"""`tf-interop report` as users have it: from a plan to a page, a trace and a picture."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import pytest
from command_line import end_of, invoke, start_process, words_of
from profile_values import GPU, SMALL, make_algorithm, make_profile
from report_values import network_plan, network_problem, plan_without_values, run_record

from tf_interop.planning.file import save_plan
from tf_interop.planning.problem import save_problem
from tf_interop.planning.types import Plan
from tf_interop.profile.file import save_profile
from tf_interop.runtime.run_record import save_run


@pytest.fixture(autouse=True)
def fixture_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_plan(network_plan(), "plan.json")


def test_writes_a_page_a_trace_and_a_picture(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("matplotlib")
    save_problem(network_problem(), "problem.json")
    save_profile(make_profile(device=GPU), "profile.json")
    save_run(run_record(), "run.json")
    result = invoke(
        "report plan.json --problem problem.json --profile profile.json --run run.json "
        "-o page.html --trace trace.json --png timeline.png --title Title"
    )
    assert result.stdout.splitlines() == [
        "page.html: page of 1 graph",
        "trace.json: trace of 1 graph",
        "timeline.png: picture of 1 graph",
        "batch 8: The profile has 0 of 8 convolutions of this graph.",
    ]
    page = pathlib.Path("page.html").read_text()
    assert "<h1>Title</h1>" in page and "3×3" in page and "1.901 ms" in page
    assert json.loads(pathlib.Path("trace.json").read_text())["traceEvents"]
    assert pathlib.Path("timeline.png").read_bytes().startswith(b"\x89PNG")


def test_a_plan_alone_is_enough() -> None:
    invoke("report plan.json --trace trace.json")
    assert not pathlib.Path("report.html").exists()
    result = invoke("report plan.json")
    assert "A plan does not hold what depends on what" in pathlib.Path("report.html").read_text()
    assert "--model" in words_of(result)


def test_says_that_a_profile_is_of_another_batch_size_or_device() -> None:
    save_profile(make_profile(make_algorithm(SMALL), device=GPU), "profile.json")
    graph = dataclasses.replace(network_plan().graphs[0], batch_size=1)
    save_plan(Plan((graph,), made_with={"device": "NVIDIA H100"}), "plan.json")
    words = words_of(invoke("report plan.json --profile profile.json"))
    assert "batch 1: The profile has 0 of 8 convolutions of this graph: it is of batch" in words
    assert "made by a profile of NVIDIA H100, and this one is of NVIDIA H200" in words


def test_says_as_json_what_was_written_and_what_the_values_are() -> None:
    save_plan(network_plan(simulated="made up"), "plan.json")
    result = invoke("report plan.json --json")
    document = json.loads(result.stdout)
    assert len(document.pop("notes")) == 1
    graph = {
        "mode": None,
        "fingerprint": "0123456789abcdef",
        "batch_size": 8,
        "convolutions": 8,
        "unmeasured": 0,
        "stages": 2,
        "latency_us": 222.0,
        "sequential_us": 356.0,
        "peak_bytes": 7_077_888,
        "latency_is": "modelled and simulated",
    }
    [found] = document.pop("graphs")
    assert graph.items() <= found.items()
    assert document == {"page": "report.html", "trace": None, "picture": None}
    save_plan(plan_without_values(), "plan.json")
    [graph] = json.loads(invoke("report plan.json --json").stdout)["graphs"]
    assert graph["latency_us"] is None and graph["stages"] == 1


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ("--problem other.json", 1, "Expected the graph 0123456789abcdef"),
        ("--run plan.json", 1, "tf_interop.run"),
        ("--for GPU", 2, "compute capability"),
    ],
)
def test_says_what_is_wrong(options: str, code: int, message: str) -> None:
    save_problem(dataclasses.replace(network_problem(), fingerprint="f" * 16), "other.json")
    assert message in words_of(invoke(f"report plan.json {options}", exit_code=code))
    assert not pathlib.Path("report.html").exists()


def test_works_without_tensorflow() -> None:
    command = "report plan.json --trace trace.json -o page.html"
    ended = end_of(start_process(*command.split(), blocked=("tensorflow",)))
    assert ended.returncode == 0, ended.stderr
    assert pathlib.Path("page.html").exists()


def test_from_a_keras_model_to_its_report_without_a_gpu() -> None:
    model = "branched_models:build"
    invoke(
        f"profile {model} --backend host --repetitions 1 --algorithms heuristic --stages none "
        "--batch 4 --training -o profile.json"
    )
    invoke(f"plan {model} --profile profile.json --batch 4 --training -o plan.json")
    result = invoke(f"report plan.json --model {model} --profile profile.json")
    page = pathlib.Path("report.html").read_text()
    assert f"<h1>{model}</h1>" in page
    # Inference and training, both of them found and named.
    assert ">batch 4, inference</a>" in page and ">batch 4, training</a>" in page
    assert "A CPU, not a GPU." in page
    assert "batch 4, training: The profile has 7 of 7 convolutions" in words_of(result)
    assert "A plan does not hold what depends on what" not in page
    assert "5×5 ∂w" in page

    result = invoke("report plan.json --model branched_models:build_other", exit_code=1)
    assert "Name the model that was planned" in words_of(result)
