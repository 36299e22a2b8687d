"""What scripts/check_wheel.sh finds wrong with a wheel."""

from __future__ import annotations

import pathlib

import pytest

from scripts import compare_wheels

ROOT = pathlib.Path(__file__).resolve().parents[2]

METADATA = """\
Metadata-Version: 2.4
Name: tf-interop
License-Expression: Apache-2.0
Classifier: Environment :: GPU :: NVIDIA CUDA :: 12
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Python :: 3
Requires-Dist: numpy>=1.26
Provides-Extra: gpu
Provides-Extra: report
Provides-Extra: dev
Requires-Dist: tf_keras>=2.20; extra == "dev"

# tf_interop
"""
INFO = "tf_interop-1.dist-info"


@pytest.fixture
def package(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "tf_interop"
    (folder / "__pycache__").mkdir(parents=True)
    (folder / "__pycache__" / "__init__.pyc").write_bytes(b"")
    (folder / "__init__.py").write_bytes(b"")
    return folder


@pytest.fixture
def files() -> dict[str, bytes]:
    return {
        "tf_interop/__init__.py": b"",
        "tf_interop/libtf_interop.so": b"1",
        "tf_interop/libtf_interop_core.so": b"1",
        "tf_interop/build_info.json": b'{"tensorflow": "2.21.0", "cudnn_backend": true}',
        f"{INFO}/METADATA": METADATA.encode(),
        f"{INFO}/entry_points.txt": b"[console_scripts]\ntf-interop=tf_interop:main\n",
        f"{INFO}/licenses/LICENSE": (ROOT / "LICENSE").read_bytes(),
        f"{INFO}/RECORD": b"1",
    }


def test_a_whole_wheel_has_no_fault(files, package) -> None:  # type: ignore[no-untyped-def]
    assert compare_wheels.faults_of(files, package) == []


@pytest.mark.parametrize("name", ["tf_interop/__init__.py", "tf_interop/libtf_interop.so"])
def test_a_missing_file_is_named(files, package, name: str) -> None:  # type: ignore[no-untyped-def]
    del files[name]
    assert compare_wheels.faults_of(files, package) == [f"it lacks {name}"]


def test_a_needless_file_is_named(files, package) -> None:  # type: ignore[no-untyped-def]
    files["tests/conftest.py"] = b""
    [fault] = compare_wheels.faults_of(files, package)
    assert fault.startswith("it holds tests/conftest.py")


def test_a_wheel_for_the_cpu_alone_is_refused(files, package) -> None:  # type: ignore[no-untyped-def]
    files["tf_interop/build_info.json"] = b'{"tensorflow": "2.21.0", "cudnn_backend": false}'
    [fault] = compare_wheels.faults_of(files, package)
    assert "without the cudnn backend" in fault


@pytest.mark.parametrize(
    ("line", "instead", "fault"),
    [
        ("License-Expression: Apache-2.0", "License: ?", "its licence is None"),
        ("Classifier: Operating System :: POSIX :: Linux", "X: 1", "lacks the classifiers"),
        ("Provides-Extra: report", "X: 1", "its extras are ['dev', 'gpu']"),
        ("Requires-Dist: numpy>=1.26", "Requires-Dist: tensorflow>=2.20", "requires tensorflow"),
        (' extra == "dev"', ' extra == "gpu"', "requires tf_keras"),
    ],
)
def test_wrong_metadata_is_named(  # type: ignore[no-untyped-def]
    files, package, line: str, instead: str, fault: str
) -> None:
    files[f"{INFO}/METADATA"] = METADATA.replace(line, instead).encode()
    [found] = compare_wheels.faults_of(files, package)
    assert fault in found


@pytest.mark.parametrize(
    ("name", "fault"),
    [("licenses/LICENSE", "text of its licence"), ("entry_points.txt", "the command tf-interop")],
)
def test_a_missing_part_of_the_metadata_is_named(  # type: ignore[no-untyped-def]
    files, package, name: str, fault: str
) -> None:
    del files[f"{INFO}/{name}"]
    [found] = compare_wheels.faults_of(files, package)
    assert fault in found


def test_wheels_differ_by_what_only_one_holds_or_other_content(files) -> None:  # type: ignore[no-untyped-def]
    other = {**files, "tf_interop/__init__.py": b"1", "tf_interop/more.py": b""}
    assert compare_wheels.differences(files, other) == [
        "tf_interop/__init__.py",
        "tf_interop/more.py",
    ]


def test_wheels_do_not_differ_by_what_each_build_draws(files) -> None:  # type: ignore[no-untyped-def]
    other = {**files, "tf_interop/libtf_interop.so": b"2", f"{INFO}/RECORD": b"2"}
    assert compare_wheels.differences(files, other) == []
