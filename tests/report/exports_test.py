"""Timelines as a trace and as a picture."""

from __future__ import annotations

import collections
import itertools
import json
import sys
from typing import Any

import msgspec
import pytest
from report_values import EVIL_NAME, network_plan, plan_without_values

from tf_interop.errors import PlanError
from tf_interop.planning.types import Plan
from tf_interop.report.exports import draw_timelines, trace_of_plan


def events_of(plan: Plan, kind: str, name: str = "") -> list[dict[str, Any]]:
    events = json.loads(msgspec.json.encode(trace_of_plan(plan)))["traceEvents"]
    return [each for each in events if each["ph"] == kind and name in each["name"]]


def test_a_trace_has_named_events_that_do_not_overlap_in_a_row() -> None:
    # Graphs without times are left out.
    plan = Plan((*plan_without_values().graphs, *network_plan().graphs))
    spans = events_of(plan, "X")
    named = {(each["pid"], each["tid"]) for each in events_of(plan, "M", "thread_name")}
    rows = collections.defaultdict(list)
    for each in spans:
        rows[each["pid"], each["tid"]].append((each["ts"], each["ts"] + each["dur"]))
    assert rows.keys() <= named
    # Unique among all processes, as Perfetto expects.
    assert len({thread for _, thread in named}) == len(named)
    for row in rows.values():
        for (_, end), (start, _) in itertools.pairwise(sorted(row)):
            assert end <= start + 1e-9
    names = [each["args"]["name"] for each in events_of(plan, "M", "process_name")]
    assert [name.rpartition(": ")[2] for name in names] == ["one after another", "in stages"]
    [span] = [each for each in spans if each["name"] == EVIL_NAME and each["pid"] == 2]
    assert (span["cat"], span["dur"]) == ("stage 1", 62.0)
    assert span["args"] == {
        "algorithm": "IMPLICIT_PRECOMP_GEMM", "time is": "modelled", "stage": 1, "alone_us": 48.0,
    }  # fmt: skip
    assert {each["args"]["time is"] for each in spans} == {"measured", "modelled"}


def test_draws_a_png_or_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    assert draw_timelines(network_plan()).startswith(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(PlanError, match="predicted times"):
        draw_timelines(plan_without_values())
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(PlanError, match="matplotlib"):
        draw_timelines(network_plan())
