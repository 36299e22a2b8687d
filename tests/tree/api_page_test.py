"""docs/api.md agrees with the commands and the docstrings."""

from __future__ import annotations

from python.benchmarks.result_file import in_new_process
from scripts import write_reference


def test_page_agrees_with_the_code() -> None:
    # Commands keep the options of the first context that shows their help.
    page = in_new_process(write_reference.render)
    assert write_reference.PAGE.read_text() == page, "run scripts/write_reference.py"
