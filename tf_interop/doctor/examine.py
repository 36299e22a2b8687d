"""Says what works on this machine, and how to mend what does not.

The checks run in processes of their own, each of which writes what it finds to a file at once: what
ends a process, such as a library that was built for another one, is then a finding too.
"""

from __future__ import annotations

import importlib
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from tf_interop.child_process import child_environment, describe_end, module_command
from tf_interop.doctor.finding import Finding, Level, went_wrong
from tf_interop.doctor.machine import tensorflow_distributions

MACHINE = "tf_interop.doctor.machine"
TENSORFLOW = "tf_interop.doctor.tensorflow_checks"
_TIMEOUT_SECONDS = 180


def examine(say: Callable[[str], None] = lambda text: None) -> tuple[Finding, ...]:
    """Runs all checks. Never raises.

    Args:
        say: told what is being looked at, in a few words.
    """
    say("Looking at the machine")
    findings = run_module(MACHINE)
    if _is_tensorflow_there():
        say("Looking at TensorFlow")
        findings += run_module(TENSORFLOW)
    return tuple(findings)


def to_json(findings: Iterable[Finding]) -> dict[str, Any]:
    """The findings as JSON."""
    return {"healthy": is_healthy(findings), "findings": msgspec.to_builtins(findings)}


def is_healthy(findings: Iterable[Finding]) -> bool:
    """Whether there is no problem; warnings do not count."""
    return all(each.level is not Level.PROBLEM for each in findings)


def run_module(module: str, timeout_seconds: float = _TIMEOUT_SECONDS) -> list[Finding]:
    """Runs the checks of a module in a process of its own.

    Args:
        module: has `CHECKS`.
        timeout_seconds: for all of them.

    Returns:
        What they found, and where the process ended early, that.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "findings"
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
        except OSError as error:
            return [went_wrong(f"could not be started: {error}", "checks")]
        lines = path.read_bytes().splitlines() if path.exists() else []
    return _findings(lines, end, errors.decode("utf-8", "replace"))


def _write_findings(module: str, path: str) -> None:
    """Runs the checks of a module in this process, and writes what each finds at once."""
    checks = importlib.import_module(module).CHECKS
    with pathlib.Path(path).open("wb", buffering=0) as file:
        for name in checks:
            # First the name of what runs next; null where all is done.
            file.write(msgspec.json.encode(name) + b"\n")
            for finding in checks.run(name):
                file.write(msgspec.json.encode(finding) + b"\n")
        file.write(b"null\n")


def _findings(lines: list[bytes], end: str, errors: str) -> list[Finding]:
    findings = []
    running: str | None = "checks"
    for line in lines:
        try:
            value = msgspec.json.decode(line, type=Finding | str | None)
        except msgspec.DecodeError:
            continue  # a line that was only half written
        if isinstance(value, Finding):
            findings.append(value)
        else:
            running = value
    if running is not None:
        last = errors.strip().splitlines()[-1:]
        text = ": ".join([f"the process of this check {end}", *last])
        findings.append(went_wrong(text, running))
    return findings


def _is_tensorflow_there() -> bool:
    try:
        return bool(tensorflow_distributions())
    except Exception:
        # The check of the same name says why.
        return False


if __name__ == "__main__":
    _write_findings(*sys.argv[1:])
