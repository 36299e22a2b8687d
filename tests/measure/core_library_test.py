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
def test_refuses_another_version_of_the_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_library, "_VERSION", 1000)
    with pytest.raises(LibraryError, match="1000"):
        core_library.load_core_library()


HEADER = core_library.find_library_file(
    core_library.CORE_LIBRARY_NAME, "TF_INTEROP_CORE_LIBRARY"
).with_suffix(".h")  # type: ignore[union-attr]


@pytest.mark.usefixtures("fresh_cache")
@pytest.mark.parametrize(
    ("library", "header"),
    [
        (None, None),
        ("no library", HEADER.read_text()),
        # The library that is installed, and not its header.
        ("", None), ("", ""), ("", "no mark"), ("", "// ---- Python reads from here\nint f(;"),
    ],
)  # fmt: skip
def test_says_what_is_wrong_with_the_library(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: pathlib.Path,
    library: str | None,
    header: str | None,
) -> None:
    path = tmp_path / "another.so"
    if library == "":
        path.symlink_to(HEADER.with_suffix(".so"))
    elif library is not None:
        path.write_text(library)
    if header is not None:
        path.with_suffix(".h").write_text(header)
    monkeypatch.setenv("TF_INTEROP_CORE_LIBRARY", str(path))
    with pytest.raises(LibraryError, match=r"another\.(so|h)"):
        core_library.load_core_library()
