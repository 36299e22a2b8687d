"""Turns the status of the plugin into the record of a run."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from tf_interop import tensorflow_internals
from tf_interop.measure.device import running_device, this_cpu
from tf_interop.runtime.graph_pass import PassReport
from tf_interop.runtime.run_record import RunGraph, RunRecord
from tf_interop.runtime.status import Status


def record_run(status: Status, command: Sequence[str]) -> RunRecord:
    """What the plugin did in this process, for `tf-interop report --run`.

    Args:
        status: what `tf_interop.status()` says.
        command: the program and its arguments.
    """
    gpu = running_device("cudnn") if tensorflow_internals.may_have_gpus() else None
    return RunRecord(
        date=datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        device=(gpu or this_cpu()).name,
        command=" ".join(command),
        graphs=tuple(_run_graph(each) for each in reversed(status.graphs)),
        stages_run=status.counters.stages_run,
        fallbacks=status.counters.fallbacks,
        refused_lane_options=status.counters.refused_lane_options,
        failures={failure.cause: failure.count for failure in status.failures},
        made_with={"tensorflow": tensorflow_internals.tensorflow_version()},
    )


def _run_graph(report: PassReport) -> RunGraph:
    return RunGraph(
        fingerprint=report.plan.fingerprint,
        batch_size=report.plan.batch_size,
        device_type=report.device_type,
        convolution_count=report.convolution_count,
        stage_count=len(report.plan.stages),
        refusals=report.refusals,
        why_unchanged=report.why_unchanged,
    )
