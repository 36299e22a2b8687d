"""The command `tf-interop doctor`."""

from __future__ import annotations

import click
from rich.console import Console
from rich.text import Text

from tf_interop.cli.result import Result, command
from tf_interop.doctor.examine import examine, is_healthy, to_json
from tf_interop.doctor.finding import Finding, Level
from tf_interop.tables import new_table, print_on

_MARKS = {
    Level.OK: ("ok", "green"),
    Level.WARNING: ("warning", "yellow"),
    Level.PROBLEM: ("problem", "bold red"),
}


@command(
    "doctor\ndoctor --json",
    exit_codes={
        0: "nothing that does not work; there may be warnings",
        1: "at least one problem",
    },
    short_help="Says what works on this machine, and how to mend what does not.",
)
def doctor() -> Result:
    """Says what works on this machine, and how to mend what does not.

    Looked at are Python, TensorFlow, the compiled libraries, driver, GPUs and cuDNN, whether the
    plugin can be registered, settings that leave it nothing to do, and whether a stage runs. It
    needs no TensorFlow; what does is then left out.
    """
    with Console(stderr=True).status("Starting") as status:
        findings = examine(status.update)
    return Result(
        to_json(findings),
        lambda: _show(findings),
        exit_code=0 if is_healthy(findings) else 1,
    )


def _show(findings: tuple[Finding, ...]) -> None:
    table = new_table("")
    table.title = None
    table.show_header = False
    table.add_column(no_wrap=True)
    table.add_column()
    table.add_column(overflow="fold", ratio=1)
    for finding in findings:
        mark, style = _MARKS[finding.level]
        table.add_row(Text(mark, style=style), Text(finding.name), Text(finding.text))
        if finding.mend:
            table.add_row("", "", Text(f"→ {finding.mend}", style="bold"))
    print_on(Console(), table)
    counts = [sum(each.level is level for each in findings) for level in Level]
    click.echo(f"\n{counts[0]} ok, {counts[1]} warnings, {counts[2]} problems")
