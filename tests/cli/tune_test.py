"""`tf-interop tune`: a table, a sentence, a plan and the cache."""

from __future__ import annotations

import pathlib

import pytest
from command_line import invoke, words_of

from tf_interop.measure.device import QUEUES_VARIABLE
from tf_interop.measure.other_load import OtherLoad
from tf_interop.planning.types import load_plan
from tf_interop.tuning.xla import XlaTimes

MODEL = "branched_models:build"


@pytest.fixture(autouse=True)
def fixture_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OtherLoad, "share", lambda _: 0.0)


def test_measures_reports_and_caches() -> None:
    said = words_of(invoke(f"tune {MODEL} --batch 1,2 --budget 0.3s -o plan.json"))
    for size in (1, 2):
        assert f"branches, inference, batch {size} median step, ms" in said
    assert "stock TensorFlow" in said
    assert "all units narrow" in said
    assert "the median over the turns of one run" in said
    graphs = load_plan("plan.json").graphs
    assert [graph.batch_size for graph in graphs] == [1, 2]
    is_faster = any(graph.unit_count for graph in graphs)
    assert ("run --plan plan.json" in said) == is_faster
    assert ("There is nothing to turn on" in said) == (not is_faster)

    said = words_of(invoke(f"tune {MODEL}"))
    assert "From the cache. --fresh measures again" in said
    listed = words_of(invoke("tuned"))
    assert "branches, inference, batch 2" in listed
    assert "2 plans" in listed
    assert "stock TensorFlow" in words_of(invoke("show plan.json"))
    assert "2 plans deleted" in words_of(invoke("tuned --clear"))
    assert "0 plans" in words_of(invoke("tuned"))


@pytest.mark.parametrize(
    ("times", "words"),
    [
        (XlaTimes(2.5, 1.25), "XLA (jit_compile=True) 2.50 1.250"),
        (XlaTimes(0.1, 50.0), "XLA is faster: 50.00 times as fast as stock TensorFlow."),
        (XlaTimes(why_not="it took too long"), "XLA was not measured: it took too long."),
    ],
)
def test_xla_is_a_row_or_a_reason(
    times: XlaTimes, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tf_interop.tuning.tune.time_xla", lambda *_, **__: times)
    said = words_of(invoke(f"tune {MODEL} --budget 0.2s"))
    assert words in said


def test_a_plan_is_for_its_own_batch_size_and_step() -> None:
    invoke(f"tune {MODEL} --budget 0.2s -o plan.json")
    benchmark = f"benchmark {MODEL} --plan plan.json --variants stock,ours -o results.json"
    said = words_of(invoke(f"{benchmark} --batch 8", exit_code=1))
    assert "tuned at batch size 1, but the graph has 8" in said
    assert "--batch 8" in said
    said = words_of(invoke(f"{benchmark} --no-inference --training", exit_code=1))
    assert "is for inference, but this graph is for training. Tune or plan again with" in said
    assert not pathlib.Path("results.json").exists()


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
