"""Every Python block of README and docs runs as it stands, and commands name what exists."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[pytest.param]:  # type: ignore[valid-type]
    return [
        pytest.param(text, id=f"{page.name}-{number}")
        for page in PAGES
        for number, (kind, text) in enumerate(BLOCK.findall(page.read_text()))
        if kind == language
    ]


def run(arguments: list[str]) -> None:
    result = subprocess.run(
        arguments, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stderr[-3000:]


@pytest.mark.parametrize("program", blocks("python"))
def test_python_block_runs(program: str) -> None:
    run([sys.executable, "-c", program])


@pytest.mark.parametrize("commands", blocks("sh"))
def test_commands_run_or_name_a_script_that_is_there(commands: str) -> None:
    for line in commands.splitlines():
        command = line.split("#")[0].split()
        if command[:3] == ["python", "-m", "tf_interop"]:
            run([sys.executable, *command[1:]])
        elif command:
            script = ROOT / command[0]
            assert script.is_file(), command
            assert script.stat().st_mode & 0o111, command


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: pathlib.Path) -> None:
    for target in re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_hold_no_marks_of_an_unfinished_merge(page: pathlib.Path) -> None:
    assert not re.findall(r"^(?:<{7}|={7}$|>{7}).*", page.read_text(), re.MULTILINE)
