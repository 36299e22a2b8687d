"""`tf_interop.plan`, from a model and a profile to the stages that the pass makes."""

from __future__ import annotations

import itertools
import pathlib
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from branched_models import build
from profile_values import GPU, make_algorithm, make_profile, make_stage

import tf_interop
from tf_interop import tensorflow_internals
from tf_interop.errors import PlanError, ProfileError
from tf_interop.measure import device as device_module
from tf_interop.measure.device import this_cpu
from tf_interop.model import make_plan as make_plan_of_model
from tf_interop.model.collect import CollectOptions, collect_configurations
from tf_interop.planning.make import make_plan
from tf_interop.planning.problem import PlanningProblem
from tf_interop.planning.types import GraphPlan, load_plan, save_plan
from tf_interop.profile.entries import Entry
from tf_interop.profile.file import save_profile
from tf_interop.profile.types import Profile, ProfiledDevice
from tf_interop.stage import Stage, Step

pytestmark = pytest.mark.usefixtures("plugin_as_after_import")


def _profile(
    *batch_sizes: int,
    training: bool = False,
    device: ProfiledDevice | None = None,
    compute_capability: str | None = None,
) -> Profile:
    """A profile of the model's convolutions in which all its stages win."""
    listed = collect_configurations(
        ["branched_models:build"],
        CollectOptions(
            batch_sizes=batch_sizes,
            inference=not training,
            training=training,
            compute_capability=compute_capability,
        ),
    ).configurations
    algorithms = ("eng1", "eng2") if device else ("BUFFERED", "DIRECT")
    entries: list[Entry] = [
        make_algorithm(each.configuration, algorithm, latency_us=latency_us, kernels=())
        for each in listed.convolutions
        for algorithm, latency_us in zip(algorithms, (10.0, 11.0), strict=True)
    ]
    for each in listed.stages:
        stage = each.stage.map(lambda place: listed.convolutions[place].configuration)
        chosen = itertools.islice(itertools.cycle(algorithms), len(stage.steps))
        measured = make_stage(latency_us=12.0, sequential_us=20.0)
        entries.append(replace(measured, stage=stage.with_algorithms(chosen)))
    return make_profile(*entries, device=device or this_cpu())


def _run(model: tf.keras.Model, batch_size: int) -> tf.Tensor:
    image = np.random.default_rng(0).normal(size=(batch_size, 8, 8, 3)).astype(np.float32)
    return tf.function(model)(image)


def test_the_pass_finds_the_plan_and_makes_its_stages(tmp_path: pathlib.Path) -> None:
    model = build()
    tf_interop.disable()
    expected = _run(model, 2)
    save_profile(_profile(2), tmp_path / "profile.json")
    plan = tf_interop.plan(model, tmp_path / "profile.json", batch_sizes=[2])
    save_plan(plan, tmp_path / "plan.json")
    [graph] = plan.graphs
    [stage] = graph.stages
    assert [step.algorithm for step in stage.stage.steps] == ["BUFFERED", "DIRECT"]
    assert stage.prediction is not None
    assert stage.prediction.latency_us == 12.0
    assert stage.alone

    tf_interop.enable(plan=load_plan(tmp_path / "plan.json"))
    result = _run(model, 2)
    made = tf_interop.status().graphs[0].plan
    assert made.fingerprint == graph.fingerprint
    [stage_made] = made.stages
    names = dict(zip(stage.nodes, stage_made.nodes, strict=True))
    assert stage_made.stage == stage.stage.map(names.__getitem__)
    assert tf_interop.status().counters.stages_run
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def test_a_training_step_is_planned_as_fit_runs_it() -> None:
    plan = tf_interop.plan(build(), _profile(4, training=True), batch_sizes=[4], training=True)
    [graph] = plan.graphs
    assert graph.convolution_count == 7
    assert graph.mode == "training"
    assert len(graph.stages) > 1
    model = build()
    model.compile("sgd", "mse", jit_compile=False)
    tf_interop.enable(plan=plan)
    model.fit(np.zeros([4, 8, 8, 3]), np.zeros([4, 2]), batch_size=4, verbose=0)
    assert graph.fingerprint in {each.plan.fingerprint for each in tf_interop.status().graphs}
    assert tf_interop.status().op_count == len(graph.stages)


def test_a_model_of_one_batch_size_is_planned_once() -> None:
    model = build()
    function = tf.function(model).get_concrete_function(tf.TensorSpec((2, 8, 8, 3)))
    plan = tf_interop.plan(function, _profile(2), batch_sizes=[2, 16])
    assert [(graph.batch_size, len(graph.stages)) for graph in plan.graphs] == [(2, 1)]
    # A function may be for either mode.
    assert plan.graphs[0].mode is None


def test_checks_the_plan_against_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    def plan_badly(problem: PlanningProblem, *_: object, **__: object) -> GraphPlan:
        planned = make_plan(problem)
        # The last convolution reads the first one.
        names = [problem.nodes[0].name, problem.nodes[-1].name]
        bad = Stage.side_by_side(Step(name, "BUFFERED") for name in names)
        return replace(planned, stages=(replace(planned.stages[0], stage=bad),))

    monkeypatch.setattr(make_plan_of_model, "make_plan", plan_badly)
    with pytest.raises(PlanError, match="stage 0"):
        tf_interop.plan(build(), _profile(2), batch_sizes=[2])


def test_refuses_a_profile_of_another_device_unless_told() -> None:
    profile = replace(_profile(2), device=replace(this_cpu(), name="Another CPU"))
    with pytest.raises(ProfileError, match="of Another CPU"):
        tf_interop.plan(build(), profile, batch_sizes=[2])
    plan = tf_interop.plan(build(), profile, batch_sizes=[2], allow_foreign_profile=True)
    assert plan.made_with["device"] == "Another CPU"
    assert plan.graphs[0].stages


@pytest.mark.parametrize("has_gpu", [False, True])
@pytest.mark.parametrize("may_use_gpu", [False, True])
def test_a_profile_must_be_of_the_gpu_if_tensorflow_may_use_one(
    has_gpu: bool, may_use_gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = GPU if has_gpu else None
    monkeypatch.setattr(device_module, "running_device", lambda _backend: gpu)
    monkeypatch.setattr(tensorflow_internals, "may_have_gpus", lambda: may_use_gpu)
    fitting, other = this_cpu(), GPU
    if has_gpu and may_use_gpu:
        fitting, other = other, fitting
    make_plan_of_model._check_fits(make_profile(device=fitting), None)
    with pytest.raises(ProfileError, match=f"expected '{fitting.backend}', got '{other.backend}'"):
        make_plan_of_model._check_fits(make_profile(device=other), None)


def test_stages_have_no_more_lanes_than_the_device_has_hardware_queues() -> None:
    model, profile = build(), _profile(2)
    for queues, stage_count in ((2, 1), (1, 0)):
        device = replace(profile.device, hardware_queues=queues)
        changed = replace(profile, device=device)
        [graph] = tf_interop.plan(model, changed, batch_sizes=[2]).graphs
        assert len(graph.stages) == stage_count


def test_plans_for_a_gpu_that_is_not_here() -> None:
    profile = _profile(2, device=GPU, compute_capability="9.0")
    with pytest.raises(ProfileError, match=r"expected '8.0', got '9.0'"):
        tf_interop.plan(build(), profile, batch_sizes=[2], target="8.0")
    with pytest.raises(ProfileError, match="expected an unknown value"):
        tf_interop.plan(build(), profile, batch_sizes=[2], target="cpu")
    [graph] = tf_interop.plan(build(), profile, batch_sizes=[2], target="9.0").graphs
    assert graph.stages
    assert graph.prediction is not None
    assert graph.unmeasured_count == 0
    # All of the GPU's memory, because the GPU is not here.
    assert graph.prediction.memory_budget_bytes == GPU.memory_bytes


def test_the_budget_is_the_free_memory_of_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_plan_of_model, "free_memory_bytes", lambda: 123 << 20)
    profile = make_profile(device=GPU)
    assert make_plan_of_model._free_memory_for(profile) == GPU.memory_bytes
    monkeypatch.setattr(make_plan_of_model, "running_device", lambda backend: GPU)
    assert make_plan_of_model._free_memory_for(profile) == 123 << 20
    assert make_plan_of_model._free_memory_for(make_profile(device=this_cpu())) is None


def test_refuses_no_batch_size_and_no_convolution() -> None:
    profile = make_profile(device=this_cpu())
    with pytest.raises(ValueError, match="batch"):
        tf_interop.plan(build(), profile, batch_sizes=[])
    dense = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(2)])
    with pytest.raises(ValueError, match="No convolution"):
        tf_interop.plan(dense, profile)
