"""What `tf-interop doctor` finds, and how a check is written."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable, Iterator


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
        mend: what to do about it; empty for what is well.
    """

    name: str
    level: Level
    text: str
    mend: str = ""


def ok(text: str, name: str = "") -> Finding:
    """A finding that all is well; `name` where it is another than the check's."""
    return Finding(name, Level.OK, text)


def warning(text: str, mend: str, name: str = "") -> Finding:
    """A finding that something is not as one may expect."""
    return Finding(name, Level.WARNING, text, mend)


def problem(text: str, mend: str, name: str = "") -> Finding:
    """A finding that something does not work."""
    return Finding(name, Level.PROBLEM, text, mend)


_REPORT_IT = "Where that does not say what to do: report it, with what --json prints."


def went_wrong(text: str, name: str = "") -> Finding:
    """A finding that a check itself went wrong."""
    return problem(text, _REPORT_IT, name)


_Find = Callable[[], Finding | Iterable[Finding]]


class Checks(dict[str, _Find]):
    """Questions to this machine by what they look at; in a module of checks the name `CHECKS`.

    @CHECKS("Python")
    def _python() -> Finding: …
    """

    def __call__(self, name: str) -> Callable[[_Find], _Find]:
        """Declares a check."""

        def declare(find: _Find) -> _Find:
            self[name] = find
            return find

        return declare

    def run(self, name: str) -> Iterator[Finding]:
        """What a check finds; what it raises is a finding, too."""
        try:
            found = self[name]()
            for finding in [found] if isinstance(found, Finding) else found:
                yield dataclasses.replace(finding, name=finding.name or name)
        # Whatever is wrong with the machine is what was asked for.
        except Exception as error:
            yield went_wrong(f"{type(error).__name__}: {error}", name)
