import shutil
from collections.abc import Iterator
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture(name="browser", scope="module")
def fixture_browser() -> Iterator[Any]:
    """Headless Chromium, under playwright."""
    if CHROMIUM is None:
        pytest.skip("needs Chromium; on Debian: apt-get install chromium")
    playwright_api = pytest.importorskip("playwright.sync_api")
    with playwright_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()
