"""`tf-interop parallelize`: from a model and devices to a plan and its explanation."""

from __future__ import annotations

import json

import pytest
from command_line import invoke, words_of

from tf_interop.parallel.costs.devices import save_device_graph, uniform_device_graph
from tf_interop.parallel.types import load_parallel_plan

MODEL = "branched_models:build"
BY_DEVICES = "--device-graph devices.json --batch 64"


@pytest.fixture(autouse=True)
def fixture_devices() -> None:
    names = [f"/device:GPU:{place}" for place in range(4)]
    rates = {"multiply_adds_per_s": 1e9, "memory_bytes_per_s": 1e9, "bytes_per_s": 1e10}
    devices = uniform_device_graph(names, **rates, latency_s=1e-6)
    save_device_graph(devices, "devices.json")


def test_plans_and_explains() -> None:
    words = words_of(
        invoke(f"parallelize {MODEL} {BY_DEVICES} --training --explain all -o parallel.json")
    )
    plan = load_parallel_plan("parallel.json")
    (graph,) = plan.graphs
    assert graph.layers
    assert (graph.mode, graph.batch_size) == ("training", 64)
    assert plan.made_with["model"] == MODEL
    for strategy in ("plan", "whole", "data", "model", "one weird trick"):
        assert strategy in words
    assert "Times are modelled. The search was within 0." in words  # per cent of the least
    assert f"parallel.json: {len(graph.layers)} of" in words


def test_explains_one_layer() -> None:
    all_of = invoke(f"parallelize {MODEL} {BY_DEVICES} --devices 2 --explain all --json").stdout
    layer = json.loads(all_of)["layers"][0]["name"]
    one = invoke(f"parallelize {MODEL} {BY_DEVICES} --explain {layer} --json").stdout
    assert [each["name"] for each in json.loads(one)["layers"]] == [layer]


@pytest.mark.parametrize(
    ("options", "exit_code", "expected"),
    [
        ("--explain nothing", 1, "has no layer 'nothing'. Choose all, or one of "),
        ("--devices some", 2, "is neither a number nor a list such as"),
        ("--memory-limit 1kB", 1, "memory"),
        ("--device-graph missing.json", 1, "File not found: 'missing.json'. Expected a device"),
    ],
)
def test_reports_wrong_options(options: str, exit_code: int, expected: str) -> None:
    said = invoke(f"parallelize {MODEL} {BY_DEVICES} {options}", exit_code=exit_code).stderr
    assert expected in " ".join(said.split())


def test_an_unknown_layer_to_explain_does_not_lose_the_plan() -> None:
    invoke(f"parallelize {MODEL} {BY_DEVICES} --explain nothing -o kept.json", exit_code=1)
    assert load_parallel_plan("kept.json").graphs
