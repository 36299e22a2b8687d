"""`tf-interop report`, from a plan to a page."""

from __future__ import annotations

import json
import pathlib

import pytest
from command_line import invoke, words_of
from report_values import network_plan, tuned_graph

from tf_interop.planning.types import Plan, save_plan


@pytest.fixture(autouse=True)
def fixture_folder() -> None:
    save_plan(network_plan(), "plan.json")


def test_prints_the_verdict_and_the_files() -> None:
    save_plan(Plan((tuned_graph(),)), "plan.json")
    result = invoke("report plan.json -o page.html --title Title")
    assert result.stdout.splitlines() == [
        "Title, inference, batch 1: tf_interop.enable() is 1.84 times as fast: 10.87 ms per step "
        "instead of 20.00 ms. It runs on one core.",
        "The page is in page.html.",
    ]
    page = pathlib.Path("page.html").read_text()
    assert "<h1>Title</h1>" in page and "1.840 ± 0.020" in page
    save_plan(Plan((tuned_graph(),), made_with={"model": "ResNet50"}), "plan.json")
    assert invoke("report plan.json").stdout.startswith("ResNet50, inference, batch 1: ")


def test_json_has_the_files_and_the_values() -> None:
    document = json.loads(invoke("report plan.json --export-trace trace.json --json").stdout)
    [graph] = document.pop("graphs")
    assert document == {"page": "report.html", "trace": "trace.json", "picture": None}
    assert "<h1>plan.json</h1>" in pathlib.Path("report.html").read_text()
    assert json.loads(pathlib.Path("trace.json").read_text())["traceEvents"]
    expected = {"fingerprint": "0123456789abcdef", "stages": 2, "latency_us": 222.0, "doubt": ""}
    assert expected.items() <= graph.items()
    assert graph["verdict"].startswith("Expected: 1.60 times as fast")


def test_from_a_keras_model_to_its_report_without_a_gpu() -> None:
    model = "branched_models:build"
    invoke(
        f"profile {model} --backend host --repetitions 1 --algorithms heuristic --stages none "
        "--batch 4 --training -o profile.json"
    )
    invoke(f"plan {model} --profile profile.json --batch 4 --training -o plan.json")
    # The drawing has the plan's names.
    plan = pathlib.Path("plan.json")
    plan.write_text(plan.read_text().replace("last", "renamed"))
    invoke(f"report plan.json --model {model}")
    page = pathlib.Path("report.html").read_text()
    assert f"<h1>{model}</h1>" in page and "renamed" in page and "last/" not in page
    assert ">inference, batch 4</a>" in page and ">training, batch 4</a>" in page
    assert "A CPU, not a GPU." in page
    assert "A plan does not contain dependencies" not in page
    assert "5×5 ∂w" in page


def test_from_a_tuned_model_to_its_report() -> None:
    model = "branched_models:build"
    invoke(f"tune {model} --batch 4 --budget 0.3s --no-compare-xla -o plan.json")
    invoke(f"report plan.json --model {model}")
    page = pathlib.Path("report.html").read_text()
    assert f"<h1>{model}</h1>" in page and "<td>stock TensorFlow" in page
    words = words_of(invoke("report plan.json --model branched_models:build_other", exit_code=1))
    assert f"The plan for '{model}' is not for this model." in words
