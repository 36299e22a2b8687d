"""What holds for every kind of file that this package writes."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import configuration_values
import jsonschema
import plan_values
import profile_values
import pytest
from benchmark_values import BENCHMARK
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from parallel_values import DEVICE_GRAPH, PARALLEL_PLAN

from tf_interop.benchmark.result import benchmark_schema, load_benchmark, save_benchmark
from tf_interop.errors import BenchmarkError, PlanError, ProfileError, TfInteropError
from tf_interop.parallel.costs.devices import (
    device_graph_schema,
    load_device_graph,
    save_device_graph,
)
from tf_interop.parallel.types import (
    load_parallel_plan,
    parallel_plan_schema,
    save_parallel_plan,
)
from tf_interop.planning.types import load_plan, plan_schema, save_plan
from tf_interop.profile.file import load_profile, open_profile, profile_schema, save_profile
from tf_interop.profile.worklist import load_configurations, save_configurations

# Of words that are anyone's, each with a value.
TABLES = {"made_with", "clocks_mhz", "fallbacks", "refused_lane_options", "failures"}
Edit = Callable[[dict[str, Any]], object]


@dataclasses.dataclass(frozen=True)
class Format:
    """One kind of file.

    Attributes:
        name: what its field `format` says.
        value: a value that has some of everything.
        load: reads it.
        save: writes it.
        error: the class of its errors.
        schema: gives the schema of its documents, where one is published.
    """

    name: str
    value: Any
    load: Callable[[pathlib.Path], Any]
    save: Callable[[Any, pathlib.Path], None]
    error: type[TfInteropError]
    schema: Callable[[], dict[str, Any]] | None = None


LIST = Format(
    "tf_interop.configurations",
    configuration_values.LIST,
    load_configurations,
    save_configurations,
    ProfileError,
)
FORMATS = (
    LIST,
    Format("tf_interop.plan", plan_values.PLAN, load_plan, save_plan, PlanError, plan_schema),
    Format(
        "tf_interop.parallel_plan",
        PARALLEL_PLAN,
        load_parallel_plan,
        save_parallel_plan,
        PlanError,
        parallel_plan_schema,
    ),
    Format(
        "tf_interop.device_graph",
        DEVICE_GRAPH,
        load_device_graph,
        save_device_graph,
        PlanError,
        device_graph_schema,
    ),
    Format(
        "tf_interop.benchmark",
        BENCHMARK,
        load_benchmark,
        save_benchmark,
        BenchmarkError,
        benchmark_schema,
    ),
    Format(
        "tf_interop.profile",
        profile_values.make_profile(*profile_values.EVERY_KIND_OF_ENTRY),
        load_profile,
        save_profile,
        ProfileError,
        profile_schema,
    ),
)


@pytest.fixture(name="form", params=FORMATS, ids=[form.name for form in FORMATS])
def fixture_form(request: pytest.FixtureRequest) -> Format:
    form: Format = request.param
    return form


@pytest.fixture(name="path")
def fixture_path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "file.json"


def documents(form: Format, path: pathlib.Path) -> list[Any]:
    """What a file of the form's value holds: one document, or one for each line."""
    form.save(form.value, path)
    content = path.read_text()
    return (
        [json.loads(line) for line in content.splitlines()]
        if is_lines(form)
        else [json.loads(content)]
    )


def is_lines(form: Format) -> bool:
    return form.name == "tf_interop.profile"


def objects(value: Any) -> Iterator[dict[str, Any]]:
    """All objects of a document, at any depth, whose fields are not anyone's."""
    if isinstance(value, dict):
        yield value
        value = [inner for name, inner in value.items() if name not in TABLES]
    for inner in value:
        if isinstance(inner, (dict, list)):
            yield from objects(inner)


def test_reads_back_what_it_wrote_in_the_same_bytes(form: Format, path: pathlib.Path) -> None:
    form.save(form.value, path)
    content = path.read_bytes()
    assert form.load(path) == form.value
    form.save(form.load(path), path)
    assert path.read_bytes() == content
    assert list(path.parent.iterdir()) == [path]


def test_the_schema_accepts_what_is_written_and_no_other_field(
    form: Format, path: pathlib.Path
) -> None:
    if form.schema is None:
        return
    validator = jsonschema.Draft202012Validator(form.schema())
    validator.check_schema(validator.schema)
    first, *others = documents(form, path)
    assert (first["format"], first["version"]) == (form.name, 1)
    for document in (first, *others):
        validator.validate(document)
    for header in ({**first, "version": 2}, {**first, "format": "other"}, {**first, "more": 1}):
        assert not validator.is_valid(header)
    definitions = form.schema()["$defs"].values()
    assert all(
        not each.get("additionalProperties", False) for each in definitions if "properties" in each
    )


@pytest.mark.parametrize(
    ("edit", "place"),
    [
        (lambda header: header.update(format="tf_interop.other"), "$.format"),
        (lambda header: header.pop("format"), "$.format"),
        (lambda header: header.update(version=2), "$.version"),
        (lambda header: header.update(version=0), "$.version"),
        (lambda header: header.update(version=True), "$.version"),
        (lambda header: header.pop("version"), "$.version"),
        (lambda header: header.update(misspelled=1), "misspelled"),
    ],
)
def test_refuses_another_header(form: Format, path: pathlib.Path, edit: Edit, place: str) -> None:
    header, *others = documents(form, path)
    edit(header)
    path.write_text("\n".join(map(json.dumps, (header, *others))) + "\n")
    with pytest.raises(form.error) as raised:
        form.load(path)
    assert place in str(raised.value)
    assert str(path) in str(raised.value)


def test_refuses_a_field_that_nothing_reads_wherever_it_is(
    form: Format, path: pathlib.Path
) -> None:
    whole = documents(form, path)
    for document, _ in enumerate(whole):
        for number, _ in enumerate(objects(whole[document])):
            changed = copy.deepcopy(whole)
            inner = list(objects(changed[document]))[number]
            inner["misspelled"] = None
            path.write_text("\n".join(map(json.dumps, changed)) + "\n")
            with pytest.raises(form.error, match="misspelled"):
                form.load(path)


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[1,]", b"[]", b"\xff\xfe", b"{} {}", b'{"a": NaN}'),
        # Nested beyond Python's stack.
        *(opening * 100_000 + b"\n" for opening in (b"[", b'{"format":')),
    ],
    ids=lambda content: content[:12],
)
def test_refuses_what_is_no_such_document(form: Format, path: pathlib.Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(form.error) as raised:
        form.load(path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize("share", [0.01, 0.3, 0.9, 0.99])
def test_refuses_a_half_written_file(form: Format, path: pathlib.Path, share: float) -> None:
    form.save(form.value, path)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    if is_lines(form) and share > 0.1:
        assert set(form.load(path).entries) < set(form.value.entries)  # what is whole
        return
    with pytest.raises(form.error):
        form.load(path)


def test_refuses_to_read_or_write_where_there_is_no_file(
    form: Format, tmp_path: pathlib.Path
) -> None:
    for path in (tmp_path / "missing.json", tmp_path):
        with pytest.raises(form.error) as raised:
            form.load(path)
        assert str(path) in str(raised.value)
    with pytest.raises(form.error, match="missing"):
        form.save(form.value, tmp_path / "missing" / "file.json")


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_keeps_the_old_file_when_writing_fails(
    form: Format, path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    path.write_text("old")
    with monkeypatch.context() as patch:
        patch.setattr(os, failing, fail)
        with pytest.raises(form.error, match="No space left"):
            form.save(form.value, path)
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]
    form.save(form.value, path)
    assert form.load(path) == form.value


def test_content_is_on_disk_before_it_takes_the_name(
    path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    fsync = os.fsync

    def look_and_fsync(descriptor: int) -> None:
        seen.append((path.exists(), os.fstat(descriptor).st_size))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", look_and_fsync)
    LIST.save(LIST.value, path)
    assert seen == [(False, path.stat().st_size)]


# What readers that trust a file stumble over.
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
    form: Format, path: pathlib.Path, data: st.DataObject
) -> None:
    whole = documents(form, path)
    for _ in range(data.draw(st.integers(0, 4))):
        container, key = data.draw(st.sampled_from(places(whole)))
        edit = data.draw(st.sampled_from(["delete", "replace", "repeat"]))
        if edit == "delete":
            del container[key]
        elif edit == "replace":
            value = data.draw(st.sampled_from(VALUES) | st.integers() | st.text())
            container[key] = copy.deepcopy(value)  # later edits may be inside of it
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
    if is_lines(form):
        with open_profile(path, value.device) as file:
            assert file.profile.entries == value.entries
    form.save(value, path)
    assert form.load(path) == value
