"""Says what works on this machine, and how to fix what does not.

The checks run in processes of their own, which write each finding to a file at once. If a check
ends its process, as a library that was built for another one may, that is a finding too.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib.util
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator

import msgspec

from tf_interop.child_process import child_environment, describe_end, module_command

_TIMEOUT_SECONDS = 180
_REPORT_IT = "If the message does not help, report it together with the output of --json."


class Level(enum.Enum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    """It works, and not as one may expect."""
    PROBLEM = "problem"
    """Something does not work."""


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: what was looked at.
        level: how bad it is.
        text: what was found.
        fix: what to do about it; empty for what is well.
    """

    name: str
    level: Level
    text: str
    fix: str = ""


def ok(text: str, name: str = "") -> Finding:
    """A finding that all is well; `name` where it is another than the check's."""
    return Finding(name, Level.OK, text)


def warning(text: str, fix: str, name: str = "") -> Finding:
    """A finding that something is not as one may expect."""
    return Finding(name, Level.WARNING, text, fix)


def problem(text: str, fix: str = _REPORT_IT, name: str = "") -> Finding:
    """A finding that something does not work."""
    return Finding(name, Level.PROBLEM, text, fix)


Check = Callable[[], Finding | Iterator[Finding]]
"""A question to this machine. A module of checks has a table of them, `CHECKS`, by name."""


def run_check(name: str, check: Check) -> Iterator[Finding]:
    """What a check finds; what it raises is a finding, too."""
    try:
        found = check()
        for finding in found if isinstance(found, Iterator) else [found]:
            yield dataclasses.replace(finding, name=finding.name or name)
    # Any error tells what is wrong with the machine.
    except Exception as error:
        yield problem(f"{type(error).__name__}: {error}", name=name)


def examine(say: Callable[[str], None] = lambda text: None) -> tuple[Finding, ...]:
    """Runs all checks, and tells `say` what it checks. Never raises."""
    say("Checking the machine")
    findings = run_module("tf_interop.doctor.machine")
    if importlib.util.find_spec("tensorflow") is not None:
        say("Checking TensorFlow")
        findings += run_module("tf_interop.doctor.tensorflow_checks")
    return tuple(findings)


def run_module(module: str, timeout_seconds: float = _TIMEOUT_SECONDS) -> list[Finding]:
    """Runs `CHECKS` of a module in a process of its own; its early end is a finding, too."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "findings"
        path.touch()
        try:
            process = subprocess.run(
                module_command(__name__, module, path),
                capture_output=True,
                check=False,
                timeout=timeout_seconds,
                env=child_environment(),
            )
            end, errors = describe_end(process.returncode), process.stderr
        except subprocess.TimeoutExpired as error:
            end, errors = f"did not end within {timeout_seconds:g} seconds", error.stderr or b""
        lines = path.read_bytes().splitlines()
    findings = []
    running: str | None = "checks"
    for line in lines:
        value = msgspec.json.decode(line, type=Finding | str | None)
        if isinstance(value, Finding):
            findings.append(value)
        else:
            running = value
    if running is not None:
        last = errors.decode("utf-8", "replace").strip().splitlines()[-1:]
        text = ": ".join([f"the process of this check {end}", *last])
        findings.append(problem(text, name=running))
    return findings


def _write_findings(module: str, path: str) -> None:
    """Runs the checks of a module in this process, and writes what each finds at once."""
    checks = importlib.import_module(module).CHECKS
    with pathlib.Path(path).open("wb", buffering=0) as file:
        for name, check in checks.items():
            # First the name of what runs next; null if all is done.
            file.write(msgspec.json.encode(name) + b"\n")
            for finding in run_check(name, check):
                file.write(msgspec.json.encode(finding) + b"\n")
        file.write(b"null\n")


if __name__ == "__main__":
    _write_findings(*sys.argv[1:])
