"""Checks as values: the thing looked at, its state, and the remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from cli.doctoring.evidence import Evidence


class Status(StrEnum):
    """``WARN`` is worth knowing and stops nobody; ``UNKNOWN`` could not be read."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Check:
    """One result. ``name`` is for machines: keep it."""

    name: str
    status: Status
    message: str
    remedy: str = ""


Examination = Callable[[Evidence], Iterator[Check]]


def ok(name: str, message: str) -> Check:
    """Result of a check that passed."""
    return Check(name, Status.OK, message)


def fail(name: str, message: str, remedy: str) -> Check:
    """Result of a check that failed: it does not work like this."""
    return Check(name, Status.FAIL, message, remedy)


def warn(name: str, message: str, remedy: str = "") -> Check:
    """Result of a check that warns: it works, and not as it should."""
    return Check(name, Status.WARN, message, remedy)


def unknown(name: str, message: str) -> Check:
    """Result of a check that could not be made."""
    return Check(name, Status.UNKNOWN, message)


def named(names: list[str], limit: int = 5) -> str:
    """``a, b and 3 more``."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
