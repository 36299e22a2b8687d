"""The plugin in stock TensorFlow: plans, refusals, other plugins, and other processes."""

from __future__ import annotations

import dataclasses
import pathlib
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from command_line import ROOT
from plan_values import landmarks_of
from planning_graphs import make_stage
from tensorflow.core.framework import graph_pb2, node_def_pb2
from tensorflow.python.eager import context
from tensorflow.python.framework import kernels
from unnoticed import (
    FILTERS,
    IMAGE,
    Program,
    assert_same,
    conv,
    counted,
    digits,
    in_function,
    in_threads,
    run_python,
    stages_run_by,
)

import tf_interop
from tf_interop.errors import LibraryError, PlanError
from tf_interop.measure.device import QUEUES_VARIABLE, has_nvidia_gpu
from tf_interop.parallel.types import ParallelPlan
from tf_interop.planning.types import GraphPlan, Plan
from tf_interop.runtime import kernel_library
from tf_interop.runtime.plugin import PassFailure, get_plugin
from tf_interop.runtime.settings import GraphItem, Policy, Settings

pytestmark = pytest.mark.usefixtures("plugin_as_after_import")


def branches(image: tf.Tensor) -> tf.Tensor:
    """Two branches: `a`, and `b` before `c`."""
    return conv(image, 0, "a") + conv(conv(image, 1, "b"), 2, "c")


make_branches = in_function(branches)


def stages_of(make: Callable[[], Program] = make_branches, program: Program = branches) -> int:
    """Counts the stages of a new function, and checks its result."""
    function = make()
    return stages_run_by(lambda: function(IMAGE), program(tf.constant(IMAGE)))


def planned_for(function: Any, *images: np.ndarray) -> GraphPlan:
    """A plan's entry for a function, without stages."""
    tf_interop.enable("always")
    function(*images)
    [report] = tf_interop.status().graphs
    get_plugin().forget_reports()
    return dataclasses.replace(report.plan, stages=())


def test_a_stage_that_is_slower_than_its_parts_runs_as_stock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The convolutions of the host's stages are far slower than TensorFlow's.
    monkeypatch.setattr(Settings, "stages_time_themselves", lambda self, _: self.times_itself)
    image = digits(0, 2, 16, 16, 32)
    filters = {name: digits(seed, 3, 3, 32, 32) for seed, name in enumerate("ab", 1)}

    def wide(image: tf.Tensor) -> list[tf.Tensor]:
        return [tf.nn.conv2d(image, each, 1, "SAME", name=name) for name, each in filters.items()]

    entry = planned_for(in_function(wide)(), image)
    tf_interop.enable(plan=Plan((dataclasses.replace(entry, stages=(make_stage("a", "b"),)),)))
    function, expected = in_function(wide)(), wide(image)
    with counted() as new:
        for _ in range(60):
            assert_same(function(image), expected)
    [timing] = tf_interop.status().stage_timings
    assert (timing.sizes, timing.is_trying) == ("2x16x16x32", False)
    ways = [each.way for each in timing.tried]
    assert ways == [timing.way, "as planned", "in sequence"]
    assert all(each.runs and each.median_ms for each in timing.tried)
    assert new.stages_run == 60 and new.fallbacks == {}
    assert "1 as stock TensorFlow" in str(tf_interop.status())


def test_follows_the_plan_of_each_batch_size(tmp_path: pathlib.Path) -> None:
    @tf.function(input_signature=[tf.TensorSpec([None, 6, 6, 4])])
    def branches(image: tf.Tensor) -> list[tf.Tensor]:
        named = zip("abc", FILTERS, strict=False)
        return [tf.nn.conv2d(image, each, 1, "SAME", name=name) for name, each in named]

    def fallbacks_at(batch_size: int) -> set[str]:
        images = digits(batch_size, batch_size, 6, 6, 4)
        with counted() as new:
            results = branches(images)
        assert new.stages_run == 1
        assert_same(results, [tf.nn.conv2d(images, each, 1, "SAME") for each in FILTERS[:3]])
        return set(new.fallbacks)

    entry = planned_for(branches, digits(1, 1, 6, 6, 4))
    stages = {
        2: make_stage("a:DIRECT", "b:DIRECT", "c"),
        3: make_stage("b:DIRECT", "+c:DIRECT a:DIRECT"),
        5: make_stage("a b:BUFFERED", "c"),
    }
    plan = Plan(
        tuple(
            dataclasses.replace(entry, stages=(stage,), batch_size=size)
            for size, stage in stages.items()
        )
    )
    tf_interop.enable(plan=plan)
    fallbacks_at(3)
    made = tf_interop.status().plan
    [only] = made.graphs[0].stages
    assert [schedule.batch_size for schedule in only.schedules] == [2, 3, 5]
    merged = [[lane.merged for lane in schedule.stage.lanes] for schedule in only.schedules]
    assert merged == [[False] * 3, [False, True], [False] * 2]

    # The resulting plan gives the same again.
    tf_interop.save_plan(made, tmp_path / "plan.json")
    get_plugin().forget_reports()
    tf_interop.enable(plan=tmp_path / "plan.json")
    assert [fallbacks_at(batch_size) for batch_size in (2, 3, 5)] == [set()] * 3
    [reason] = fallbacks_at(4)
    assert "batch size 4 is not in the plan (2, 3, 5)" in reason
    assert tf_interop.status().plan == made
    # Without memory for joined filters the lanes are not merged, and the results are the same.
    tf_interop.enable(plan=tmp_path / "plan.json", workspace_limit_mb=0)
    [reason] = fallbacks_at(3)
    assert "merged lanes ran unmerged" in reason


def test_a_plan_that_does_not_fit_changes_nothing_and_says_why() -> None:
    entry = planned_for(make_branches(), IMAGE)
    foreign = GraphPlan("0123456789abcdef", landmarks_of("p", "q"), (make_stage("p", "q"),))
    for graph, kept, cause in (
        # tests/planning/check_test.py covers all kinds of illegal plans.
        (dataclasses.replace(entry, stages=(make_stage("b", "c"),)), True, "stage 0"),
        (dataclasses.replace(entry, stages=(make_stage("a:FASTEST"),)), True, "FASTEST"),
        (foreign, True, "it has 2 convolutions, and this graph has 3; only this graph has '"),
        (foreign, False, "graphs with folded parameters, and folding is off"),
    ):
        get_plugin().forget_reports()
        tf_interop.enable(plan=Plan((graph,)), kept=kept)
        assert stages_of() == 0
        [failure] = tf_interop.status().failures
        assert cause in failure.cause
        assert ("folding is off" in failure.cause) != kept
        assert tf_interop.status().graphs == ()


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"policy": "greedy"}, ValueError, "greedy"),
        ({"policy": "always", "plan": Plan(())}, ValueError, "plan"),
        ({"policy": "always", "self_timing": True}, ValueError, "self_timing"),
        ({"plan": "half.json"}, PlanError, r"half\.json"),
        ({"parallel": "none.json"}, PlanError, "File not found: .none.json"),
        (
            {"parallel": ParallelPlan(("/device:CPU:0", "/device:CPU:1"), ())},
            PlanError,
            "Devices are missing: .*CPU:1",
        ),
        ({"workspace_limit_mb": -1}, ValueError, "workspace_limit_mb"),
        ({"policy": "plan.json"}, ValueError, "Pass a plan as the argument plan"),
        ({"plan": {"graphs": []}}, ValueError, "got a dict"),
        *(
            ({"pass_time_limit_s": limit}, ValueError, "pass_time_limit_s")
            for limit in (0, -1.0, float("nan"))
        ),
    ],
)
def test_refuses_arguments_and_changes_nothing(
    arguments: dict[str, Any],
    error: type[Exception],
    match: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    pathlib.Path("half.json").write_text('{"format": "tf_interop.plan", "version": 1, "graphs": [{')
    tf_interop.enable("always")
    before = get_plugin().settings
    with pytest.raises(error, match=match):
        tf_interop.enable(**arguments)
    assert get_plugin().settings is before


@pytest.mark.usefixtures("logged")
def test_of_many_failures_the_last_are_kept() -> None:
    plugin = get_plugin()
    for number in range(1000):
        plugin._record_failure(RuntimeError(f"injected {number}"))
    assert len(plugin.failures) <= 200
    assert plugin.failures[-1] == PassFailure("RuntimeError: injected 999", 1)


def test_two_threads_set_settings_and_pass_together(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = get_plugin()
    plugin.settings = Settings(Policy.ALWAYS)
    given: list[object] = []
    is_late, is_over = threading.Event(), threading.Event()

    def set_pass(run: object, _time_limit_s: float, **_: bool) -> None:
        if run is None:  # the first thread is delayed here
            is_late.set()
            is_over.wait(0.5)
        given.append(run)

    def set_settings(settings: Settings) -> None:
        if settings.can_make_stages:
            assert is_late.wait(60)
        plugin.settings = settings
        is_over.set()

    monkeypatch.setattr(plugin.library, "set_pass", set_pass)
    in_threads(set_settings, [Settings(), Settings(Policy.ALWAYS)])
    assert plugin.settings.can_make_stages
    assert given[-1] is not None


def test_is_off_even_if_values_on_another_device_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose() -> None:
        raise tf.errors.UnavailableError(None, None, "a worker is gone")

    tf_interop.enable()
    divider = types.SimpleNamespace(turn_off=lose)
    monkeypatch.setattr(get_plugin(), "settings", Settings(divider=divider))
    with pytest.raises(tf.errors.UnavailableError, match="a worker is gone"):
        tf_interop.disable()
    assert not tf_interop.status().is_on


def test_leaves_a_gpu_of_another_maker_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = get_plugin()
    assert has_nvidia_gpu() or "no NVIDIA GPU" in plugin.refused_device_types["GPU"]
    plugin.settings = Settings(Policy.ALWAYS)
    device = types.SimpleNamespace(device_type="GPU")
    monkeypatch.setattr(context.context(), "_pluggable_devices", [device])
    nodes = [
        node_def_pb2.NodeDef(name=name, op=op, device="/job:localhost/device:GPU:0")
        for name, op in (("a", "Placeholder"), ("b", "Conv2D"))
    ]
    handed = types.SimpleNamespace(
        serialized=graph_pb2.GraphDef(node=nodes).SerializeToString(),
        item=GraphItem("GPU"),
        name="",
    )
    assert not plugin._run(handed)
    [failure] = plugin.failures
    assert "pluggable device" in failure.cause


def test_warns_of_a_plugin_that_is_loaded_later(other_plugin: pathlib.Path) -> None:
    """TensorFlow then aborts the process."""
    late = f"""if True:
        from tensorflow.python.framework import load_library
        import tf_interop
        tf_interop.enable("always")
        load_library.load_pluggable_device_library({str(other_plugin.parent)!r})
    """
    ended = subprocess.run(
        [sys.executable, "-c", late], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert ended.returncode == -signal.SIGABRT
    assert f"{other_plugin} is a graph plugin" in ended.stderr


def test_rubbish_from_the_pass_does_not_reach_the_program() -> None:
    """Grappler keeps its graph if TensorFlow cannot read the new one."""

    def rubbish(handed: kernel_library.HandedGraph) -> bool:
        handed.set_result(b"\xff\xff\xff")
        return True

    tf_interop.enable("always")
    get_plugin().library.set_pass(rubbish)
    assert stages_of() == 0


def test_the_pass_can_use_tensorflows_shape_inference() -> None:
    inferred: dict[str, object] = {}

    def ask(handed: kernel_library.HandedGraph) -> bool:
        for name in ("a", "c", "nowhere"):
            inferred[name] = handed.item.infer_output_shapes(name)
        return False

    tf_interop.enable("always")
    get_plugin().library.set_pass(ask)
    make_branches()(IMAGE)
    assert inferred == {"a": [(2, 6, 6, 4)], "c": [(2, 6, 6, 4)], "nowhere": None}


@pytest.mark.parametrize("device_type", ["CPU", "GPU"])
def test_the_op_has_a_kernel_for(device_type: str) -> None:
    registered = kernels.get_registered_kernels_for_op("TfInterop>ConvStage").kernel
    [kernel] = [each for each in registered if each.device_type == device_type]
    assert list(kernel.host_memory_arg) == (["sizes"] if device_type == "GPU" else [])


USE_IT = """
    def use_it():
        @tf.function
        def branches(x):
            return (tf.nn.conv2d(x, tf.ones([3, 3, 2, 2]), 1, "SAME")
                    + tf.nn.conv2d(x, tf.ones([1, 1, 2, 2]), 1, "SAME"))
        value = branches(tf.ones([1, 4, 4, 2])).numpy()
        assert value[0, 1, 1, 0] == 20, value
        return tf_interop.status().counters.stages_run
"""
OTHER_PLUGIN = """
#include "tensorflow/c/experimental/grappler/grappler.h"
static void Optimize(void*, const TF_Buffer*, const TF_GrapplerItem*, TF_Buffer*,
                     TF_Status* status) { TF_SetStatus(status, TF_ABORTED, ""); }
extern "C" void TF_InitGraph(TP_OptimizerRegistrationParams* params, TF_Status* status) {
  params->struct_size = TP_OPTIMIZER_REGISTRATION_PARAMS_STRUCT_SIZE;
  params->device_type = "CPU";
  params->optimizer_configs->struct_size = TP_OPTIMIZER_CONFIGS_STRUCT_SIZE;
  params->optimizer->struct_size = TP_OPTIMIZER_STRUCT_SIZE;
  params->optimizer->optimize_func = Optimize;
  TF_SetStatus(status, TF_OK, "");
}
"""


@pytest.fixture(scope="module")
def other_plugin(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("other")
    source, library = folder / "other.cc", folder / "libother.so"
    source.write_text(OTHER_PLUGIN)
    flags = [*tf.sysconfig.get_compile_flags(), *tf.sysconfig.get_link_flags()]
    subprocess.run(["g++", "-shared", "-fPIC", str(source), "-o", str(library), *flags], check=True)
    return library


def test_reports_another_plugin_and_leaves_it_alone(other_plugin: pathlib.Path) -> None:
    run_python(
        USE_IT
        + f"""
    import tensorflow as tf
    from tensorflow.python.framework import load_library
    load_library.load_pluggable_device_library({str(other_plugin)!r})
    import tf_interop
    status = tf_interop.status()
    assert "CPU" not in status.device_types, status
    assert "Another graph-optimizer plugin" in status.refused_device_types["CPU"]
    assert use_it() == 0
    """
    )


def test_registering_twice_does_nothing() -> None:
    library = get_plugin().library
    for device_type in get_plugin().device_types:
        library.register_plugin(device_type)
    with pytest.raises(LibraryError, match="Expected device type CPU or GPU, got TPU"):
        library.register_plugin("TPU")


def test_works_in_forked_children_where_tensorflow_does() -> None:
    """TensorFlow itself works in a forked child only if the parent has not run an op yet.

    Another thread of the parent is inside the plugin when it forks. The import makes TensorFlow
    start only when it is used, and asks for all hardware queues, before CUDA starts.
    """
    run_python(
        f"""
    import os, sys, threading
    import tf_interop
    assert "tensorflow" not in sys.modules
    os.environ.pop("{QUEUES_VARIABLE}", None)
    assert tf_interop.status().device_types
    assert os.environ["{QUEUES_VARIABLE}"] == "32"
    import tensorflow as tf
    {USE_IT}
    from tf_interop.runtime import plugin
    the_plugin = plugin.get_plugin()
    is_held, is_over = threading.Event(), threading.Event()
    def turn_on():
        with plugin._plugin_lock, the_plugin._change_lock, the_plugin._lock:
            is_held.set()
            is_over.wait()
    other = threading.Thread(target=turn_on)
    other.start()
    is_held.wait()
    child = os.fork()
    if child == 0:
        import faulthandler
        faulthandler.dump_traceback_later(60, exit=True)
        tf_interop.enable("always")
        os._exit(0 if use_it() == 1 else 1)
    is_over.set()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, status
    """
    )


def test_a_missing_library_is_reported_and_breaks_nothing(tmp_path: pathlib.Path) -> None:
    run_python(
        """
    import tensorflow as tf
    import tf_interop
    status = tf_interop.status()
    assert not status.is_on and "is missing" in status.why_off, status
    assert tf.function(lambda x: x + 1)(1) == 2
    try:
        tf_interop.enable()
    except tf_interop.errors.LibraryError as error:
        assert "pip install" in str(error)
    else:
        raise AssertionError

    # Planning for another machine needs no library.
    from tf_interop.model.graphs import planned_graph, trace

    model = tf.keras.Sequential(
        [
            tf.keras.Input([8, 8, 3]),
            tf.keras.layers.Conv2D(4, 3, use_bias=False),
            tf.keras.layers.BatchNormalization(),
        ]
    )
    graph_def = planned_graph(trace(model, batch_size=2), "8.0")
    assert "TfInterop>Kept" in {node.op for node in graph_def.node}
    """,
        TF_INTEROP_LIBRARY=str(tmp_path / "nowhere.so"),
    )
