"""Damaged files of every kind: a reader refuses one, or reads the same from what it writes."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
from formats_test import FORMATS, Format, documents
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tf_interop.errors import TfInteropError
from tf_interop.profile.file import open_profile

# What readers that trust a file stumble over.
VALUES = (
    *(None, True, -1, 0, 1, 2**31, 2**63, 10**30, -0.0, 1e308, 0.5, "", "a\x00b"),
    *("../../etc/passwd", [], {}, [[]]),
)
EVERY_FORMAT = pytest.mark.parametrize("form", FORMATS, ids=[each.name for each in FORMATS])


@EVERY_FORMAT
@pytest.mark.parametrize("opening", ["[", '{"format":'])
def test_refuses_what_is_nested_beyond_pythons_stack(
    form: Format, opening: str, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "file"
    path.write_text(opening * 100_000 + "\n")
    with pytest.raises(TfInteropError, match=str(path)):
        form.load(path)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container with every key or index that leads to a value."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    found = [(value, key) for key in keys]
    for key in keys:
        if isinstance(value[key], dict | list):
            found += places(value[key])
    return found


@EVERY_FORMAT
@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_is_refused_or_read_back(form: Format, tmp_path: pathlib.Path, data: st.DataObject) -> None:
    path = tmp_path / "file"
    whole = documents(form, path)
    for _ in range(data.draw(st.integers(0, 4))):
        container, key = data.draw(st.sampled_from(places(whole)))
        edit = data.draw(st.sampled_from(["delete", "replace", "repeat"]))
        if edit == "delete":
            del container[key]
        elif edit == "replace":
            container[key] = data.draw(st.sampled_from(VALUES) | st.integers() | st.text())
        elif isinstance(container, list):
            container.insert(key, container[key])
        else:
            container[data.draw(st.text())] = container[key]
        if not whole:
            break
    content = bytearray("\n".join(map(json.dumps, whole)).encode() + b"\n")
    for _ in range(data.draw(st.sampled_from([0, 0, 1, 2]))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        value = form.load(path)
    except TfInteropError:
        return
    if form.name == "tf_interop.profile":
        with open_profile(path, value.device) as file:
            assert file.profile.entries == value.entries
    form.save(value, path)
    assert form.load(path) == value
