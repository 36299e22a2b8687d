"""A report in a browser: pressed, on a phone, in light and dark. Needs Chromium and playwright."""

from __future__ import annotations

import pathlib
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
    # Of two timelines that fit none is to be zoomed.
    assert tab.page.locator("svg.timeline:visible").count() == 2
    assert tab.page.locator(".zoom:visible").count() == 0
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


def _shown_names(tab: Tab) -> list[dict[str, Any]]:
    return tab.page.evaluate(
        "[...document.querySelectorAll('.timeline .span text')]"
        ".filter((each) => getComputedStyle(each).visibility === 'visible')"
        ".map((each) => ({text: each.textContent, width: each.getBoundingClientRect().width,"
        " room: each.closest('.span').getBoundingClientRect().width}))"
    )


@pytest.mark.parametrize("viewport", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_a_timeline_fits_and_is_zoomed_on_demand(
    browser: Any, lean_page_path: pathlib.Path, viewport: dict[str, int]
) -> None:
    tab = Tab(browser, lean_page_path, viewport, "light")
    scroll = tab.page.locator('[aria-label="Timelines"]:visible')
    fits = "each => each.scrollWidth <= each.clientWidth"
    assert scroll.evaluate(fits)
    tab.page.locator(".timeline text.fits").first.wait_for()
    names = _shown_names(tab)
    assert [each["text"] for each in names] == ["block_37"]
    zoom = tab.page.locator(".zoom:visible")
    zoom.click()
    assert not scroll.evaluate(fits)
    tab.page.locator(".timeline text.fits").nth(1).wait_for()
    assert all(each["width"] <= each["room"] for each in _shown_names(tab))
    zoom.click()
    assert scroll.evaluate(fits)
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


def test_fits_a_network_into_the_width(browser: Any, page_path: pathlib.Path) -> None:
    tab = Tab(browser, page_path, PHONE, "light")
    drawing = tab.page.locator("svg.network:visible")
    box = tab.page.locator(".scroll:visible").first
    assert drawing.bounding_box()["width"] > box.bounding_box()["width"]
    tab.page.locator(".fit:visible").first.click()
    assert drawing.bounding_box()["width"] <= box.bounding_box()["width"]
    tab.close()
