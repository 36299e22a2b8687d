"""What scripts/check_wheel.sh finds wrong with a wheel."""

from __future__ import annotations

import pathlib

import pytest

from scripts import compare_wheels

INFO = "tf_interop-1.dist-info"
METADATA = b"""\
Name: tf-interop
Requires-Dist: numpy>=1.26
Requires-Dist: tf_keras>=2.20; extra == "dev"
"""
WHEEL = {
    **dict.fromkeys(compare_wheels.BUILT, b"1"),
    "tf_interop/__init__.py": b"",
    compare_wheels.BUILD_INFO: b'{"tensorflow": "2.21.0", "cudnn_backend": true}',
    f"{INFO}/METADATA": METADATA,
    f"{INFO}/licenses/LICENSE": b"1",
    f"{INFO}/RECORD": b"1",
}
LIBRARY = "tf_interop/libtf_interop.so"


@pytest.fixture(name="package")
def fixture_package(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "tf_interop"
    (folder / "__pycache__").mkdir(parents=True)
    (folder / "__pycache__" / "__init__.pyc").touch()
    (folder / "__init__.py").touch()
    return folder


def test_a_whole_wheel_has_no_fault(package: pathlib.Path) -> None:
    assert compare_wheels.faults_of(WHEEL, package) == []


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("tf_interop/__init__.py", None, "lacks tf_interop/__init__.py"),
        (LIBRARY, None, f"lacks {LIBRARY}"),
        (f"{INFO}/licenses/LICENSE", None, "licence"),
        ("tests/conftest.py", b"", "foreign tests/conftest.py"),
        (compare_wheels.BUILD_INFO, b'{"cudnn_backend": false}', "cudnn"),
        (f"{INFO}/METADATA", b"Requires-Dist: tensorflow>=2.20\n", "requires tensorflow"),
        (f"{INFO}/METADATA", METADATA.replace(b"dev", b"gpu"), "requires tf_keras"),
    ],
)
def test_names_what_is_wrong(
    package: pathlib.Path, name: str, content: bytes | None, fault: str
) -> None:
    files = {each: text for each, text in WHEEL.items() if each != name}
    if content is not None:
        files[name] = content
    [found] = compare_wheels.faults_of(files, package)
    assert fault in found


def test_wheels_differ_by_all_but_what_each_build_draws() -> None:
    other = {**WHEEL, "tf_interop/__init__.py": b"1", "tf_interop/more.py": b""}
    assert compare_wheels.differences(WHEEL, other | {LIBRARY: b"2", f"{INFO}/RECORD": b"2"}) == [
        "tf_interop/__init__.py",
        "tf_interop/more.py",
    ]
