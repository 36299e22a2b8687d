"""The command `tf-interop doctor`."""

from __future__ import annotations

import click
import msgspec
from rich.console import Console
from rich.text import Text

from tf_interop.cli.command import Result, command
from tf_interop.cli.progress import shown_status
from tf_interop.doctor.examine import Finding, Level, examine
from tf_interop.tables import new_table, print_on

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
    Without TensorFlow it skips the checks that need it.
    """
    with shown_status("Starting") as say:
        findings = examine(say)
    # Warnings do not count.
    is_healthy = all(each.level is not Level.PROBLEM for each in findings)
    document = {"healthy": is_healthy, "findings": msgspec.to_builtins(findings)}
    return Result(document, lambda: _show(findings), exit_code=0 if is_healthy else 1)


def _show(findings: tuple[Finding, ...]) -> None:
    table = new_table("")
    table.title = None
    table.show_header = False
    table.columns[0].no_wrap = True
    table.add_column()
    table.add_column(overflow="fold", ratio=1)
    for finding in findings:
        mark = Text(finding.level.value, style=_STYLES[finding.level])
        table.add_row(mark, Text(finding.name), Text(finding.text))
        if finding.fix:
            table.add_row("", "", Text(f"→ {finding.fix}", style="bold"))
    print_on(Console(), table)
    ok, warnings, problems = (sum(each.level is level for each in findings) for level in Level)
    click.echo(
        f"\n{ok} ok, {warnings} warning{'s' * (warnings != 1)}, "
        f"{problems} problem{'s' * (problems != 1)}"
    )
