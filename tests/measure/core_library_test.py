"""Loading the compiled core, and what is said where that fails."""

from __future__ import annotations

import pathlib
import re

import pytest

from tf_interop.errors import LibraryError
from tf_interop.measure import core_library


def test_knows_the_version_of_cudnn() -> None:
    version = core_library.load_core_library().cudnn_version()
    assert version == "" or re.fullmatch(r"\d+\.\d+\.\d+", version)


def test_refuses_an_unknown_backend() -> None:
    with pytest.raises(LibraryError, match="tpu"):
        core_library.load_core_library().open_backend("tpu")


def test_opens_a_backend_once() -> None:
    library = core_library.load_core_library()
    once, again = library.open_backend("host"), library.open_backend("host")
    assert once._device == again._device


@pytest.fixture(name="fresh_cache")
def fixture_fresh_cache() -> None:
    core_library.load_core_library.cache_clear()


@pytest.mark.usefixtures("fresh_cache")
def test_says_that_the_library_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setenv("TF_INTEROP_CORE_LIBRARY", str(tmp_path / "none.so"))
    with pytest.raises(LibraryError, match=r"none\.so"):
        core_library.load_core_library()


@pytest.mark.usefixtures("fresh_cache")
def test_says_that_the_library_does_not_load(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "text.so").write_text("no library")
    installed = core_library.find_core_library()
    assert installed is not None
    (tmp_path / "text.h").write_bytes(installed.with_suffix(".h").read_bytes())
    monkeypatch.setenv("TF_INTEROP_CORE_LIBRARY", str(tmp_path / "text.so"))
    with pytest.raises(LibraryError, match=r"text\.so"):
        core_library.load_core_library()


@pytest.mark.usefixtures("fresh_cache")
def test_refuses_another_version_of_the_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_library, "_VERSION", 1000)
    with pytest.raises(LibraryError, match="1000"):
        core_library.load_core_library()


@pytest.mark.usefixtures("fresh_cache")
@pytest.mark.parametrize("header", [None, "", "no mark", "// ---- Python reads from here\nint f(;"])
def test_refuses_a_library_without_its_header(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, header: str | None
) -> None:
    installed = core_library.find_core_library()
    assert installed is not None
    (tmp_path / installed.name).symlink_to(installed)
    if header is not None:
        (tmp_path / installed.with_suffix(".h").name).write_text(header)
    monkeypatch.setenv("TF_INTEROP_CORE_LIBRARY", str(tmp_path / installed.name))
    with pytest.raises(LibraryError):
        core_library.load_core_library()
