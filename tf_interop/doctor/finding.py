"""What `tf-interop doctor` finds, and how a check is written."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable


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


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """A question to this machine.

    Attributes:
        name: what is looked at.
        find: gives the findings; it may raise.
    """

    name: str
    find: Callable[[], Iterable[Finding]]


def ok(name: str, text: str) -> Finding:
    """A finding that all is well."""
    return Finding(name, Level.OK, text)


def warning(name: str, text: str, mend: str) -> Finding:
    """A finding that something is not as one may expect."""
    return Finding(name, Level.WARNING, text, mend)


def problem(name: str, text: str, mend: str) -> Finding:
    """A finding that something does not work."""
    return Finding(name, Level.PROBLEM, text, mend)
