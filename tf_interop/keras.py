"""A Keras callback that turns the plugin on for one `fit`, `evaluate` or `predict`."""

from __future__ import annotations

import collections
import dataclasses
import os
from typing import Any

import tensorflow as tf
from absl import logging

from tf_interop import tensorflow_internals
from tf_interop.duration import parse_duration
from tf_interop.errors import TfInteropError
from tf_interop.measure.device import has_nvidia_gpu
from tf_interop.model.graphs import is_count
from tf_interop.planning.types import Plan
from tf_interop.runtime.plugin import Plugin, get_plugin
from tf_interop.runtime.settings import DEFAULT_PASS_TIME_LIMIT_S, PassReport
from tf_interop.runtime.switch import make_settings
from tf_interop.terminal import count_of
from tf_interop.tuning.tune import tune as tune_model

_KERAS_BATCH_SIZE = 32


class _Call:
    """A call of `fit`, `evaluate` or `predict`, and the state before it.

    `depth` counts the begin hooks whose end hook has not been called.
    """

    def __init__(self, plugin: Plugin, model: Any, *, may_make_units: bool) -> None:
        self.plugin = plugin
        self.model = model
        self.compilation = tensorflow_internals.model_compilation(model)
        self.functions = tensorflow_internals.model_functions(model)
        self.may_make_units = may_make_units
        self.is_xla_in_the_way = may_make_units and bool(model.jit_compile)
        self.settings = plugin.settings
        self.option = tensorflow_internals.plugin_optimizers_option()
        self.reports = plugin.reports
        self.failures = _failures_of(plugin)
        self.depth = 0
        self.is_reported = False
        self.must_tune: bool | None = None  # after the first batch; whether for training

    def new_reports(self) -> tuple[PassReport, ...]:
        # Compared by identity, because optimizing a graph again makes an equal report.
        before = {id(report) for report in self.reports}
        return tuple(report for report in self.plugin.reports if id(report) not in before)

    def new_failures(self) -> list[str]:
        counts = _failures_of(self.plugin) - self.failures
        return [f"{count_of(count, 'graph')} unchanged: {cause}" for cause, count in counts.items()]


class Enable:
    """Turns the plugin on during `fit`, `evaluate` or `predict`, and back off after it.

        model.fit(images, labels, callbacks=[tf_interop.keras.Enable(plan="plan.json")])

    It works with `tf.keras` (Keras 3) and tf_keras. During the call

    - the callback's settings apply to the model and to every other function that TensorFlow
      optimizes meanwhile;
    - Keras makes the model's functions again, because an optimized function keeps its graph. So
      every call traces the model; for many short calls use `tf_interop.enable`.

    `jit_compile` stays as it is. If XLA compiles the model, as Keras 3 lets it by itself where
    there is a GPU, all convolutions run in stages inside the compiled functions, and a plan, if
    any, is made with `jit_compile=True`. On a CPU the callback makes no units there and warns;
    depthwise convolutions run TensorFlow's own kernels.

    At the end the callback restores the settings, the option `use_plugin_optimizers` and the
    model's functions; a later call without the callback runs without stages.

    The logs of each epoch of `fit` contain the number of stages (on a CPU, of units) as
    `tf_interop_ops`. So does its History, and so does TensorBoard if its callback follows this one.
    After `evaluate` and `predict` the number is in the logs of the end hook, which other callbacks
    see, and in `op_count`.

    With `tune` the callback first tunes the model: `fit` tunes the training step, with a stand-in
    for the loss and the optimizer; other calls, except validation inside `fit`, tune inference. A
    model that does not state its inputs is tuned after its first batch, which shows them.
    The callback prints the result in one line and caches it. On a CPU tuning only tells what to
    expect: with or without it, graphs time themselves, at every batch size. A model that is fastest
    in stock TensorFlow at the tuned batch size runs as without the callback.

    Keras calls no end hook when a call fails. The changes are then undone by `restore`, by the end
    of a `with` block, or by the callback's next use:

        with Enable("always") as callback:
            model.fit(images, labels, callbacks=[callback])

    A callback serves one call at a time: a call inside a hook of another call needs its own
    callback. Concurrent calls in several threads share the process's settings: one may run with
    another's, and the settings restored last remain.

    Attributes:
        graphs: reports on the graphs that were optimized during the last call.
    """

    # There is no base class: tf_keras calls methods that the Callback of Keras 3 lacks, may not be
    # installed, and neither checks the class. This class has every method that they call.
    #
    # It deliberately lacks `_supports_tf_logs`: with it, tf_keras would pass the dict that becomes
    # the result of `evaluate`, and `tf_interop_ops` would end up in the result.

    def __init__(
        self,
        policy: str = "profiled",
        *,
        plan: Plan | str | os.PathLike[str] | None = None,
        pass_time_limit_s: float = DEFAULT_PASS_TIME_LIMIT_S,
        workspace_limit_mb: int | None = None,
        tune: str | float | None = None,
        batch_size: int | None = None,
        verbose: int = 1,
    ) -> None:
        """Checks the arguments and reads their files; changes nothing yet.

        Args:
            policy: as for `tf_interop.enable`.
            plan: as for `tf_interop.enable`.
            pass_time_limit_s: as for `tf_interop.enable`.
            workspace_limit_mb: as for `tf_interop.enable`.
            tune: how long to tune the model before it runs, such as `"30s"`, instead of a plan.
            batch_size: the batch size to tune for. None means the model's fixed batch size, if any,
                else 32, Keras's default for arrays.
            verbose: 1 to print a report, and the progress of tuning; 0 to print nothing.

        Raises:
            ValueError: as for `tf_interop.enable`, or another argument is wrong.
            PlanError: as for `tf_interop.enable`.
        """
        if verbose not in (0, 1):
            raise ValueError(f"Expected verbose to be 0 or 1, got {verbose!r}.")
        self._settings = make_settings(policy, plan, None, pass_time_limit_s, workspace_limit_mb)
        if tune is not None and self._settings.can_make_stages:
            raise ValueError(
                "Expected only one of tune, plan and policy 'always'. Leave the others out."
            )
        if batch_size is not None and (tune is None or not is_count(batch_size)):
            raise ValueError(
                "Expected batch_size to be a whole number of 1 or more, and only with tune, got "
                f"{batch_size!r}."
            )
        self._tune_budget_s = None if tune is None else parse_duration(tune)
        self._batch_size = batch_size
        self._verbose = bool(verbose)
        self._params: dict[str, Any] = {}
        self._call: _Call | None = None
        self.graphs: tuple[PassReport, ...] = ()

    @property
    def op_count(self) -> int:
        """The number of stages, or units on a CPU, in all `graphs`."""
        return sum(len(report.op_names) for report in self.graphs)

    def restore(self) -> None:
        """Undoes all changes of the callback, if any.

        Needed only after a failed call, if the callback is not used again.
        """
        call = self._call
        if call is None:
            return
        self._call = None
        self.graphs = call.new_reports()
        call.plugin.settings = call.settings
        call.plugin.set_option(call.option)
        if tensorflow_internals.model_compilation(call.model) is not call.compilation:
            tensorflow_internals.drop_model_functions(call.model)
        else:
            tensorflow_internals.set_model_functions(call.model, call.functions)

    def __enter__(self) -> Enable:
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()

    # Keras calls these methods.

    def set_model(self, model: Any) -> None:
        """Turns the plugin on; Keras makes the model's functions after this.

        Raises:
            LibraryError: the compiled library is missing or does not fit this TensorFlow.
        """
        self.restore()
        self.graphs = ()
        plugin = get_plugin()
        plugin.check_registered()
        makes_units = self._settings.makes_units("CPU") and not has_nvidia_gpu()
        self._call = call = _Call(plugin, model, may_make_units=makes_units)
        if call.is_xla_in_the_way:
            logging.warning(
                "XLA compiles the functions of model %r, so Enable makes no units in them. To "
                "use Enable, compile the model with jit_compile=False.",
                model.name,
            )
        tensorflow_internals.drop_model_functions(model)
        plugin.settings = self._settings
        plugin.set_option(True)

    def set_params(self, params: dict[str, Any] | None) -> None:
        """Keeps Keras's parameters for their `verbose`."""
        self._params = params or {}

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Tunes if requested, before anything is traced."""
        self._begin(training=True)

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Does the same as `on_train_begin`, but nothing for the validation inside `fit`."""
        self._begin(training=False)

    on_predict_begin = on_test_begin

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Puts the number of stages into the logs."""
        self._report(logs)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Restores everything, unless this was the validation inside `fit`."""
        call = self._call
        if call is None:
            return
        call.depth -= 1
        if call.depth <= 0:
            self._report(logs)
            self.restore()

    on_test_end = on_predict_end = on_train_end

    def on_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Does nothing."""

    on_batch_end = on_epoch_begin = on_batch_begin
    on_train_batch_begin = on_test_batch_begin = on_predict_batch_begin = on_batch_begin

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Tunes a model whose inputs the first batch has shown."""
        call = self._call
        if call is None or call.must_tune is None or self._tune_budget_s is None:
            return
        training, call.must_tune = call.must_tune, None
        self._tune(call, self._tune_budget_s, training=training)
        tensorflow_internals.make_model_functions_anew(call.model)

    on_test_batch_end = on_predict_batch_end = on_train_batch_end

    def _implements_train_batch_hooks(self) -> bool:
        return self._tune_budget_s is not None

    _implements_test_batch_hooks = _implements_train_batch_hooks
    _implements_predict_batch_hooks = _implements_train_batch_hooks

    def _begin(self, *, training: bool) -> None:
        call = self._call
        if call is None:
            return
        if call.depth == 0 and self._tune_budget_s is not None:
            if tensorflow_internals.states_inputs(call.model):
                self._tune(call, self._tune_budget_s, training=training)
            else:
                call.must_tune = training
        # Validation inside `fit` calls the begin hooks of `evaluate`.
        call.depth += 1

    def _tune(self, call: _Call, budget_s: float, *, training: bool) -> None:
        model = call.model
        size = self._batch_size or tensorflow_internals.model_batch_size(model)
        hint = ""
        if size is None:
            size = _KERAS_BATCH_SIZE
            hint = (
                f" This is for batch size {size}, because Keras does not tell callbacks yours: "
                "pass it as Enable(batch_size=…)."
            )
        try:
            tuning = tune_model(
                model,
                batch_sizes=(size,),
                training=training,
                jit_compile=bool(model.jit_compile),
                budget=budget_s,
                enable=False,
                say=None if self._verbose else lambda text: None,
            )
        except (TfInteropError, ValueError, TypeError, RuntimeError, tf.errors.OpError) as error:
            self._say(f"Enable: not tuned, but on as without tune: {error}")
            return
        self._say(f"Enable: {tuning}{hint}")
        if call.is_xla_in_the_way:
            call.is_reported = True
        else:
            call.plugin.settings = dataclasses.replace(self._settings, plan=tuning.plan)

    def _report(self, logs: dict[str, Any] | None) -> None:
        call = self._call
        if call is None:
            return
        if not call.is_reported:
            self.graphs = call.new_reports()
        # In every epoch, so that all columns of a History have the same length.
        if logs is not None:
            logs["tf_interop_ops"] = self.op_count
        if call.is_reported:
            return
        call.is_reported = True
        # Keras's progress bar has not ended its line.
        start = "\n" if self._params.get("verbose") in ("auto", 1) else ""
        self._say(f"{start}Enable: {_summarize(self.graphs, call)}")

    def _say(self, text: str) -> None:
        logging.info("%s", text.strip())
        if self._verbose:
            print(text, flush=True)


def _summarize(graphs: tuple[PassReport, ...], call: _Call) -> str:
    ops = sum(len(report.op_names) for report in graphs)
    if not ops:
        whys = [*dict.fromkeys(report.why_unchanged for report in graphs), *call.new_failures()]
        return "no stages or units: " + "; ".join(whys or [_why_no_graphs(call)])
    stages = sum(len(report.plan.stages) for report in graphs)
    made = [(stages, "stage"), (ops - stages, "unit")]
    nouns = " and ".join(count_of(count, noun) for count, noun in made if count)
    operations = sum(report.operation_count for report in graphs)
    text = f"{nouns} of {count_of(operations, 'operation')}"
    refused = collections.Counter(
        each.reason.value for report in graphs for each in report.refusals
    )
    if refused:
        reasons = ", ".join(f"{count} {reason}" for reason, count in refused.items())
        text += f" ({count_of(refused.total(), 'convolution')} unchanged: {reasons})"
    return "; ".join([text, *call.new_failures()])


def _why_no_graphs(call: _Call) -> str:
    settings = call.plugin.settings
    if not (settings.can_make_stages or (settings.times_itself and call.may_make_units)):
        return "policy 'profiled' needs a plan; pass plan=, or policy='always'"
    why = "TensorFlow optimized no graph with a convolution during this call"
    if call.is_xla_in_the_way:
        return f"{why}; XLA compiles the model's functions (jit_compile=True)"
    if call.model.run_eagerly:
        return f"{why}; the model runs eagerly (run_eagerly=True)"
    return why


def _failures_of(plugin: Plugin) -> collections.Counter[str]:
    return collections.Counter({failure.cause: failure.count for failure in plugin.failures})
