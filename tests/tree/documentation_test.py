"""Checks the code blocks of README and docs by their language.

- `python`: a program, which runs.
- `sh`: commands. Those of tf_interop run. Others must be existing scripts, which are too slow here
  or have their own test.
- `sh parsed`: commands that need a GPU, a program of the reader, or too much time. Those of
  tf_interop must use existing commands, options and kinds of arguments.
- `text`: a drawing, or the output of a program.

The blocks of a page run one after another in one folder and one process.
"""

from __future__ import annotations

import itertools
import json
import pathlib
import re
import shlex

import pytest
from command_line import ROOT, parse, python_output

PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LANGUAGES = {"python", "sh", "sh parsed", "text"}
OURS = (["tf-interop"], ["python", "-m", "tf_interop"])
# Runs programs, and commands as lists of their arguments.
RUNNER = """
import json, sys
from tf_interop.cli.main import cli
for each in json.loads(sys.argv[1]):
    if isinstance(each, str):
        exec(each, {"__name__": "__main__"})
    else:
        assert not cli(each, standalone_mode=False)
"""


def words_of(commands: str) -> list[list[str]]:
    """The words of each command, without comments and settings of environment variables."""
    lines = commands.replace("\\\n", " ").splitlines()
    is_setting = re.compile(r"[A-Z_]+=").match
    split = (shlex.split(line, comments=True) for line in lines)
    return [[*itertools.dropwhile(is_setting, words)] for words in split if words]


def arguments_of(words: list[str]) -> list[str] | None:
    """The arguments of a tf_interop command; None for another program."""
    for ours in OURS:
        if words[: len(ours)] == ours:
            return words[len(ours) :]
    return None


def assert_is_script(words: list[str]) -> None:
    if words == [".", ".venv/bin/activate"]:
        return
    if words[:2] == ["python", "-m"]:
        assert (ROOT / words[2].replace(".", "/")).with_suffix(".py").is_file(), words
        return
    script = ROOT / words[0]
    assert script.is_file(), words
    assert script.stat().st_mode & 0o111, words


@pytest.fixture(name="folder")
def fixture_folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder with only `python/`, as in the root of a clone."""
    (tmp_path / "python").symlink_to(ROOT / "python")
    return tmp_path


def anchors_of(page: pathlib.Path) -> set[str]:
    """GitHub's anchors for the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", BLOCK.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


EVERY_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@EVERY_PAGE
def test_page_is_well_formed_and_its_links_work(page: pathlib.Path) -> None:
    text = page.read_text()
    found = BLOCK.findall(text)
    assert text.count("```") == 2 * len(found)
    assert {language for language, _ in found} <= LANGUAGES
    for target, anchor in re.findall(r"\]\((?!https?://)([^)#]*)#?([^)]*)\)", text):
        linked = page.parent / target if target else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors_of(linked), f"{target}#{anchor}"
    assert not re.findall(r"^(?:<{7}|={7}$|>{7}).*", text, re.MULTILINE), "an unfinished merge"


@EVERY_PAGE
def test_blocks_run_one_after_another(
    page: pathlib.Path, folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Files of commands that are only parsed are empty, and must not be read.
    (folder / "parsed").mkdir()
    monkeypatch.chdir(folder / "parsed")
    to_run: list[str | list[str]] = []
    for language, text in BLOCK.findall(page.read_text()):
        if language == "python":
            to_run.append(text)
        elif language.startswith("sh"):
            for words in words_of(text):
                arguments = arguments_of(words)
                if arguments is None:
                    assert_is_script(words)
                elif language == "sh":
                    to_run.append(arguments)
                else:
                    check_arguments(arguments)
    if to_run:
        python_output("-c", RUNNER, json.dumps(to_run), folder=folder)


def check_arguments(arguments: list[str]) -> None:
    """Parses the arguments of a command of tf_interop."""
    for word in arguments:
        if word.endswith((".json", ".py", ".csv")):
            pathlib.Path(word).touch()  # made by an earlier command or the reader
    parse(arguments)


def test_readme_lists_every_page() -> None:
    listed = set(re.findall(r"\]\(([^)#]+\.md)\)", (ROOT / "README.md").read_text()))
    assert {str(page.relative_to(ROOT)) for page in PAGES[1:]} <= listed
