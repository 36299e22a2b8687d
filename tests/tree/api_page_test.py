"""docs/api.md agrees with the commands and the docstrings."""

from __future__ import annotations

from scripts import write_reference


def test_page_agrees_with_the_code() -> None:
    assert write_reference.PAGE.read_text() == write_reference.render(), (
        "run scripts/write_reference.py"
    )
