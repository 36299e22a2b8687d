"""A report in a browser. Needs Chromium and playwright."""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from plan_values import landmarks_of
from report_values import EVIL_NAME, network, network_plan, planned_graph, tuned_graph

from tf_interop.planning.types import GraphPlan, GraphPrediction, Plan, UnstagedConvolution
from tf_interop.report.network import NODE_WIDTH, Network, NetworkNode
from tf_interop.report.page import render_page

PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1280, "height": 900}


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
    """A page of three graphs: with stages; without stages, 2 of 40 not measured; and tuned."""
    names = [f"net/block_{number}/convolution" for number in range(38)]
    unstaged = tuple(UnstagedConvolution(name, "GEMM", 100.0, 0) for name in names)
    prediction = GraphPrediction(3800.0, 3800.0, 10**6, 10**6, None, "exact")
    landmarks = landmarks_of(*names, "a", "b")
    partly = GraphPlan("f" * 16, landmarks, (), 16, prediction, unstaged, mode="training")
    plan = Plan((*network_plan().graphs, partly, tuned_graph()), made_with={"backend": "host"})
    chain = Network(
        tuple(NetworkNode(name, (place - 1,) if place else ()) for place, name in enumerate(names))
    )
    networks = [network(), chain, None]
    page = render_page(plan, title=f"A {EVIL_NAME}", networks=networks)
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(page)
    return path


class Tab:
    """The page in a tab, with the messages and requests that a page should not make."""

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


def test_clicking_a_stage_shows_it_and_marks_it_in_every_drawing(
    browser: Any, page_path: pathlib.Path
) -> None:
    tab = Tab(browser, page_path, DESKTOP, "light")
    # First the stage that saves most: 103 against 31 µs.
    assert tab.shown_stages() == ["graph-0-stage-1"]
    for place, stage in (
        ('.network [data-stage="0"] .around', 0),
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
        # One in the network, and one for each lane in both timelines.
        lanes = planned_graph().stages[stage].stage.lanes
        assert marked == [str(stage)] * (1 + 2 * len(lanes))
    tab.close()


@pytest.mark.parametrize(
    ("viewport", "scheme"), [(PHONE, "dark"), (DESKTOP, "light")], ids=["phone", "desktop"]
)
def test_fits_the_screen_in_the_colours_that_it_asks_for(
    browser: Any, page_path: pathlib.Path, viewport: dict[str, int], scheme: str
) -> None:
    tab = Tab(browser, page_path, viewport, scheme)
    tab.page.evaluate("document.querySelectorAll('details').forEach((each) => each.open = true)")
    # Only content that scrolls by itself is wider than the screen.
    assert tab.page.evaluate("document.documentElement.scrollWidth") == viewport["width"]
    wide = tab.page.evaluate(
        "[...document.querySelectorAll('main *')].filter((each) => !each.closest('.scroll')"
        " && each.getBoundingClientRect().right > innerWidth).map((each) => each.outerHTML)"
    )
    assert wide == []
    background = tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (max(map(int, background[4:-1].split(","))) < 60) == (scheme == "dark")
    tab.close()


def test_drawings_fit_into_the_width_and_stay_legible(
    browser: Any, page_path: pathlib.Path
) -> None:
    tab = Tab(browser, page_path, PHONE, "light")
    for drawing, fits_at_first in (("network", False), ("timeline", True)):
        panel = tab.page.locator(f"#graph-1 .panel:has(.{drawing})")
        scroll = panel.locator(".scroll")
        for fits in (fits_at_first, not fits_at_first):
            assert scroll.evaluate("each => each.scrollWidth <= each.clientWidth") == fits
            panel.locator(".fit").click()
    # It wraps without shrinking.
    tab.page.locator("#graph-1 .panel:has(.network) .fit").click()
    boxes = [each.bounding_box() for each in tab.page.locator("#graph-1 .network .node").all()]
    assert all(each["width"] >= NODE_WIDTH for each in boxes)
    tab.close()
