"""Properties of every kind of file that this package writes."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import pathlib
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jsonschema
import profile_values
import pytest
from benchmark_values import BENCHMARK
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from parallel_values import DEVICE_GRAPH, PARALLEL_PLAN
from plan_values import PLAN, TUNED

from tf_interop.benchmark.result import BENCHMARK_FILE
from tf_interop.errors import ProfileError, TfInteropError
from tf_interop.parallel.costs.devices import DEVICE_GRAPH_FILE
from tf_interop.parallel.types import PARALLEL_PLAN_FILE
from tf_interop.planning.types import PLAN_FILE
from tf_interop.profile.file import load_profile, open_profile, profile_schema, save_profile
from tf_interop.profile.worklist import LIST_FILE

# Objects with any names as fields.
TABLES = {"made_with", "clocks_mhz", "fallbacks", "failures"}
Edit = Callable[[dict[str, Any]], object]

# A profile has one document per line, so it has its own functions.
PROFILE_FILE = types.SimpleNamespace(
    header={"format": "tf_interop.profile", "version": 1},
    load=load_profile,
    save=save_profile,
    schema=profile_schema,
    error=ProfileError,
)


class Form(NamedTuple):
    """A kind of file, and a value with some of everything."""

    file: Any
    value: Any


FORMS = (
    Form(LIST_FILE, profile_values.LIST),
    Form(
        PLAN_FILE,
        dataclasses.replace(PLAN, graphs=(*PLAN.graphs, TUNED)),
    ),
    Form(PARALLEL_PLAN_FILE, PARALLEL_PLAN),
    Form(DEVICE_GRAPH_FILE, DEVICE_GRAPH),
    Form(BENCHMARK_FILE, BENCHMARK),
    Form(PROFILE_FILE, profile_values.make_profile(*profile_values.EVERY_KIND_OF_ENTRY)),
)


@pytest.fixture(name="form", params=FORMS, ids=[form.file.header["format"] for form in FORMS])
def fixture_form(request: pytest.FixtureRequest) -> Form:
    form: Form = request.param
    return form


def documents(form: Form, path: pathlib.Path) -> list[Any]:
    """The documents in a file of the form's value: one, or one for each line."""
    form.file.save(form.value, path)
    content = path.read_text()
    texts = content.splitlines() if form.file is PROFILE_FILE else [content]
    return list(map(json.loads, texts))


def objects(value: Any) -> Iterator[dict[str, Any]]:
    """All objects of a document with known fields, at any depth."""
    if isinstance(value, dict):
        yield value
        value = [inner for name, inner in value.items() if name not in TABLES]
    for inner in value:
        if isinstance(inner, (dict, list)):
            yield from objects(inner)


def test_a_file_that_was_read_is_written_with_the_same_bytes(
    form: Form, path: pathlib.Path
) -> None:
    form.file.save(form.value, path)
    content = path.read_bytes()
    assert form.file.load(path) == form.value
    form.file.save(form.file.load(path), path)
    assert path.read_bytes() == content
    assert list(path.parent.iterdir()) == [path]


def test_the_schema_accepts_written_files_and_no_other_field(
    form: Form, path: pathlib.Path
) -> None:
    validator = jsonschema.Draft202012Validator(form.file.schema())
    validator.check_schema(validator.schema)
    first, *others = documents(form, path)
    assert form.file.header.items() <= first.items()
    for document in (first, *others):
        validator.validate(document)
    for header in ({**first, "version": 2}, {**first, "format": "other"}, {**first, "more": 1}):
        assert not validator.is_valid(header)
    definitions = form.file.schema()["$defs"].values()
    assert all(
        not each.get("additionalProperties", False) for each in definitions if "properties" in each
    )


def test_another_kind_of_file_is_named_with_the_command_that_prints_it(
    form: Form, path: pathlib.Path
) -> None:
    BENCHMARK_FILE.save(BENCHMARK, path)
    if form.file is BENCHMARK_FILE:
        save_profile(FORMS[-1].value, path)
    with pytest.raises(form.file.error, match=r" is .*, not a .*: tf-interop show .*file\.json$"):
        form.file.load(path)


@pytest.mark.parametrize(
    ("edit", "place"),
    [
        (lambda header: header.update(format="other"), "$.format"),
        (lambda header: header.pop("format"), "$.format"),
        (lambda header: header.update(version=2), "$.version"),
        (lambda header: header.update(version=0), "$.version"),
        (lambda header: header.update(version=True), "$.version"),
        (lambda header: header.pop("version"), "$.version"),
        (lambda header: header.update(misspelled=1), "misspelled"),
    ],
)
def test_refuses_another_header(form: Form, path: pathlib.Path, edit: Edit, place: str) -> None:
    header, *others = documents(form, path)
    edit(header)
    path.write_text("\n".join(map(json.dumps, (header, *others))) + "\n")
    with pytest.raises(form.file.error) as raised:
        form.file.load(path)
    assert place in str(raised.value)
    assert str(path) in str(raised.value)


def test_refuses_an_unknown_field_anywhere(form: Form, path: pathlib.Path) -> None:
    whole = documents(form, path)
    for document, _ in enumerate(whole):
        for number, _ in enumerate(objects(whole[document])):
            changed = copy.deepcopy(whole)
            inner = list(objects(changed[document]))[number]
            inner["misspelled"] = None
            path.write_text("\n".join(map(json.dumps, changed)) + "\n")
            with pytest.raises(form.file.error, match="misspelled"):
                form.file.load(path)


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[1,]", b"[]", b"\xff\xfe", b"{} {}", b'{"a": NaN}'),
        # Deeper than Python's stack.
        *(opening * 100_000 + b"\n" for opening in (b"[", b'{"format":')),
    ],
    ids=lambda content: content[:12],
)
def test_refuses_other_documents(form: Form, path: pathlib.Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(form.file.error) as raised:
        form.file.load(path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize("form", FORMS[:-1], ids=lambda form: form.file.header["format"])
@pytest.mark.parametrize("signature", [b"PK\x03\x04", b"\x89HDF\r\n\x1a\n"])
def test_a_model_is_called_one(form: Form, path: pathlib.Path, signature: bytes) -> None:
    path.write_bytes(signature + bytes(range(256)))
    with pytest.raises(form.file.error, match=r"file\.json' is a model or an archive, not a "):
        form.file.load(path)


def test_refuses_a_path_without_a_file(form: Form, tmp_path: pathlib.Path) -> None:
    for path in (tmp_path / "missing.json", tmp_path):
        with pytest.raises(form.file.error) as raised:
            form.file.load(path)
        assert str(path) in str(raised.value)
    with pytest.raises(form.file.error, match="missing"):
        form.file.save(form.value, tmp_path / "missing" / "file.json")


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_keeps_the_old_file_when_writing_fails(
    form: Form, path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    path.write_text("old")
    with monkeypatch.context() as patch:
        patch.setattr(os, failing, fail)
        with pytest.raises(form.file.error, match="No space left"):
            form.file.save(form.value, path)
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]
    form.file.save(form.value, path)
    assert form.file.load(path) == form.value


def test_writes_to_a_pipe(form: Form, path: pathlib.Path) -> None:
    form.file.save(form.value, path)
    reading, writing = os.pipe()
    form.file.save(form.value, f"/dev/fd/{writing}")
    os.close(writing)
    assert os.read(reading, 1 << 20) == path.read_bytes()
    os.close(reading)


# Values that careless readers fail on.
VALUES = (
    *(None, True, -1, 0, 1, 2**31, 2**63, 10**30, -0.0, 1e308, 0.5, "", "a\x00b"),
    *("../../etc/passwd", [], {}, [[]]),
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container with every key or index that leads to a value."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    found = [(value, key) for key in keys]
    for key in keys:
        if isinstance(value[key], dict | list):
            found += places(value[key])
    return found


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_a_damaged_file_is_refused_or_read_back(
    form: Form, path: pathlib.Path, data: st.DataObject
) -> None:
    whole = documents(form, path)
    for _ in range(data.draw(st.integers(0, 4))):
        container, key = data.draw(st.sampled_from(places(whole)))
        edit = data.draw(st.sampled_from(["delete", "replace", "repeat"]))
        if edit == "delete":
            del container[key]
        elif edit == "replace":
            value = data.draw(st.sampled_from(VALUES) | st.integers() | st.text())
            container[key] = copy.deepcopy(value)  # a later edit may change it
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
        value = form.file.load(path)
    except TfInteropError:
        return
    if form.file is PROFILE_FILE:
        with open_profile(path, value.device) as file:
            assert file.profile.entries == value.entries
    form.file.save(value, path)
    assert form.file.load(path) == value
