"""Says what works on this machine, and how to mend what does not.

The checks run in processes of their own, each of which writes what it finds to a file at once: what
ends a process, such as a library that was built for another one, is then a finding too.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from tf_interop.child_environment import child_environment
from tf_interop.doctor.finding import Check, Finding, Level, problem
from tf_interop.doctor.machine import tensorflow_distributions

MACHINE = "tf_interop.doctor.machine"
TENSORFLOW = "tf_interop.doctor.tensorflow_checks"

# Python puts the working directory first; a source tree there is not the package that is examined.
_CHILD = f"""
import sys
if sys.path[0] == "":
    del sys.path[0]
from {__name__} import write_findings
write_findings(*sys.argv[1:])
"""
_TIMEOUT_SECONDS = 180
_REPORT_IT = "Where that does not say what to do: report it, with what --json prints."


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


def to_json(findings: tuple[Finding, ...]) -> dict[str, Any]:
    """The findings as JSON."""
    return {
        "healthy": is_healthy(findings),
        "findings": [_finding_to_json(each) for each in findings],
    }


def is_healthy(findings: tuple[Finding, ...]) -> bool:
    """Whether there is no problem; warnings do not count."""
    return all(each.level is not Level.PROBLEM for each in findings)


def run_module(module: str, timeout_seconds: float = _TIMEOUT_SECONDS) -> list[Finding]:
    """Runs the checks of a module in a process of its own.

    Args:
        module: has a tuple `CHECKS`.
        timeout_seconds: for all of them.

    Returns:
        What they found, and where the process ended early, that.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "findings"
        command = [sys.executable, "-c", _CHILD, module, str(path)]
        try:
            process = subprocess.run(
                command,
                capture_output=True,
                check=False,
                timeout=timeout_seconds,
                env=child_environment(),
            )
            end, errors = _describe_end(process.returncode), process.stderr
        except subprocess.TimeoutExpired as error:
            end, errors = f"did not end within {timeout_seconds:g} seconds", error.stderr or b""
        except OSError as error:
            return [problem("checks", f"could not be started: {error}", _REPORT_IT)]
        lines = path.read_text().splitlines() if path.exists() else []
    return _findings(lines, end, errors.decode("utf-8", "replace"))


def write_findings(module: str, path: str) -> None:
    """Runs the checks of a module in this process, and writes what each finds at once."""
    with pathlib.Path(path).open("w") as file:

        def write(value: object) -> None:
            # A line that was only half written is no JSON, and is left out.
            print(json.dumps(value), file=file, flush=True)

        for check in importlib.import_module(module).CHECKS:
            write({"begins": check.name})
            for finding in _run_check(check):
                write(_finding_to_json(finding))
        write({"done": True})


def _run_check(check: Check) -> Iterator[Finding]:
    try:
        yield from check.find()
    # Whatever is wrong with the machine is what was asked for.
    except Exception as error:
        yield problem(check.name, f"{type(error).__name__}: {error}", _REPORT_IT)


def _findings(lines: list[str], end: str, errors: str) -> list[Finding]:
    findings = []
    running = "checks"
    is_done = False
    for line in lines:
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if "begins" in value:
            running = value["begins"]
        elif "done" in value:
            is_done = True
        else:
            findings.append(Finding(**{**value, "level": Level(value["level"])}))
    if not is_done:
        last = errors.strip().splitlines()[-1:] or [""]
        text = ": ".join(filter(None, (f"the process of this check {end}", last[0])))
        findings.append(problem(running, text, _REPORT_IT))
    return findings


def _finding_to_json(finding: Finding) -> dict[str, str]:
    return {**dataclasses.asdict(finding), "level": finding.level.value}


def _describe_end(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def _is_tensorflow_there() -> bool:
    try:
        return bool(tensorflow_distributions())
    except Exception:
        # The check of the same name says why.
        return False
