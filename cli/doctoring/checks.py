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
    """It is as it should be."""
    return Check(name, Status.OK, message)


def fail(name: str, message: str, remedy: str) -> Check:
    """It does not work like this."""
    return Check(name, Status.FAIL, message, remedy)


def warn(name: str, message: str, remedy: str = "") -> Check:
    """It works, and yet."""
    return Check(name, Status.WARN, message, remedy)


def unknown(name: str, message: str) -> Check:
    """It could not be looked at."""
    return Check(name, Status.UNKNOWN, message)


def named(names: list[str], limit: int = 5) -> str:
    """``a, b and 3 more``."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
