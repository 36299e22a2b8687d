"""`tf-interop tune`: a table, a sentence, a plan and the cache."""

from __future__ import annotations

import pathlib

import pytest
from command_line import invoke, words_of
from plan_values import measured_step

from tf_interop.measure.device import QUEUES_VARIABLE
from tf_interop.measure.other_load import OtherLoad
from tf_interop.planning.types import XLA, ComparedStep, GraphPlan, Plan, load_plan
from tf_interop.tuning.cache import save_cached

MODEL = "branched_models:build"


@pytest.fixture(autouse=True)
def fixture_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OtherLoad, "share", lambda _: 0.0)


def test_measures_reports_and_caches() -> None:
    said = words_of(invoke(f"tune {MODEL} --batch 1,2 --budget 0.3s --no-compare-xla -o plan.json"))
    for size in (1, 2):
        assert f"branches, inference, batch {size} median step, ms times as fast" in said
    assert "stock TensorFlow" in said and "tf_interop.enable()" in said
    plan = load_plan("plan.json")
    assert [graph.batch_size for graph in plan.graphs] == [1, 2]
    is_faster = any(graph.measured.ours.is_gain for graph in plan.graphs)
    assert ("run --plan plan.json" in said) == is_faster
    assert ("There is nothing to turn on" in said) == (not is_faster)
    assert "ms per step instead of" in words_of(invoke("show plan.json"))
    assert "From the cache. --fresh measures again" in words_of(invoke(f"tune {MODEL}"))


def test_lists_and_deletes_the_cache() -> None:
    for number, ratio in enumerate((1.5, 1.0)):
        graph = GraphPlan(str(number), (), batch_size=8, measured=measured_step(ratio))
        save_cached(Plan((graph,), made_with={"graph": f"graph {number}"}), str(number))
    listed = words_of(invoke("tuned"))
    assert "graph 0 1.50 ± 0.02" in listed and "graph 1 stock is as fast" in listed
    assert "2 plans deleted" in words_of(invoke("tuned --clear"))
    assert "0 plans" in words_of(invoke("tuned"))


@pytest.mark.parametrize(
    ("times", "words"),
    [
        (ComparedStep(XLA, 2.5, 1.25), "XLA (jit_compile=True) 2.50 1.250"),
        (ComparedStep(XLA, 0.1, 50.0), "XLA is 50.00 times as fast as stock TensorFlow: compile"),
        ("it took too long", "XLA was not measured: it took too long."),
    ],
)
def test_xla_is_a_row_or_a_reason(
    times: ComparedStep | str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tf_interop.tuning.tune.time_xla", lambda *_, **__: times)
    said = words_of(invoke(f"tune {MODEL} --budget 0.2s"))
    assert words in said


@pytest.mark.parametrize("command", ["tune", "profile -o profile.json"])
def test_all_hardware_queues_are_asked_for_before_a_model_is_loaded(
    command: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(QUEUES_VARIABLE, "")  # so that it is restored
    monkeypatch.delenv(QUEUES_VARIABLE)
    monkeypatch.syspath_prepend(tmp_path)
    module = f"queues_of_{command.split()[0]}"
    pathlib.Path(f"{module}.py").write_text(
        "import os\n"
        f"def build(): raise ValueError('queues: ' + os.environ.get('{QUEUES_VARIABLE}', 'few'))"
    )
    assert "queues: 32" in words_of(invoke(f"{command} {module}:build", exit_code=2))
