"""The command `tf-interop doctor`."""

from __future__ import annotations

import importlib.util

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tf_interop.child_process import describe_end, run_module
from tf_interop.cli import doctor_checks
from tf_interop.cli.doctor_checks import Finding, Level, problem
from tf_interop.cli.main import Result, command
from tf_interop.cli.progress import shown_status
from tf_interop.terminal import count_of, print_on

_TIMEOUT_SECONDS = 180
_STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "bold red"}


@command(
    "doctor\ndoctor --json",
    exit_codes={
        0: "no problem; there may be warnings",
        1: "at least one problem",
    },
)
def doctor() -> Result:
    """Reports what works on this machine, and how to fix what does not.

    It checks Python, TensorFlow, the compiled libraries, driver, GPUs and cuDNN, whether the
    plugin can be registered, settings that leave it nothing to do, and whether a stage runs.
    If TensorFlow is missing, it skips the checks that need it.
    """
    with shown_status("Checking the machine") as say:
        findings = run_group("machine")
        if importlib.util.find_spec("tensorflow") is not None:
            say("Checking TensorFlow")
            findings += run_group("TensorFlow")
    is_healthy = all(each.level is not Level.PROBLEM for each in findings)
    document = {"healthy": is_healthy, "findings": msgspec.to_builtins(findings)}
    return Result(document, lambda: _show(findings), exit_code=0 if is_healthy else 1)


def run_group(
    group: str, module: str = doctor_checks.__name__, timeout_seconds: float = _TIMEOUT_SECONDS
) -> list[Finding]:
    """Runs a group of a module's `CHECKS` in a process of its own; never raises.

    If the process ends early or takes too long, that is a finding too.
    """
    request = msgspec.json.encode([module, group])
    ended = run_module(doctor_checks.__name__, request, timeout_seconds)
    findings = []
    running: str | None = "checks"
    for line in ended.result.splitlines():
        value = msgspec.json.decode(line, type=Finding | str | None)
        if isinstance(value, Finding):
            findings.append(value)
        else:
            running = value
    if running is not None:
        end = f"did not end within {timeout_seconds:g} seconds"
        if ended.code is not None:
            end = describe_end(ended.code)
        last = ended.said.strip().splitlines()[-1:]
        text = ": ".join([f"the process of this check {end}", *last])
        findings.append(problem(text, name=running))
    return findings


def _show(findings: list[Finding]) -> None:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    table.add_column(overflow="fold", ratio=1)
    for finding in findings:
        mark = Text(finding.level.value, style=_STYLES[finding.level])
        table.add_row(mark, Text(finding.name), Text(finding.text))
        if finding.fix:
            table.add_row("", "", Text(f"→ {finding.fix}", style="bold"))
    print_on(Console(), table)
    ok, warnings, problems = (sum(each.level is level for each in findings) for level in Level)
    click.echo(f"\n{ok} ok, {count_of(warnings, 'warning')}, {count_of(problems, 'problem')}")
