"""Tests of commands run in a folder of their own."""

from __future__ import annotations

import pathlib
import sys

import pytest


@pytest.fixture(autouse=True)
def fixture_working_directory(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # Loading module:function adds the working directory, which other tests change.
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
