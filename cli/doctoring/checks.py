"""Checks as values: the thing looked at, its state, and the remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from cli.doctoring.evidence import Evidence
from cli.output import named, nameless
from cli.site import GpuView


class Status(StrEnum):
    """``WARN`` is worth knowing and stops nobody; ``UNKNOWN`` could not be read."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Check:
    """One result. ``name`` is for machines: keep it.

    ``cause`` is equal for results that are to be shown as one, with the first of the ``about``.
    """

    name: str
    status: Status
    message: str
    remedy: str = ""
    about: str = ""
    cause: str = ""

    def of_gpu(self, view: GpuView, *, cause: str = "") -> Check:
        """The result about a GPU: alike on others whose message is that but for their names."""
        node, gpu = view.inventory.node, view.gpu
        text = nameless(cause or self.message, node, gpu.name, gpu.uuid)
        return replace(self, about=f"{node} {gpu.name}", cause=text)

    def of_node(self, node: str) -> Check:
        """The result about a node: alike on others whose message is that but for their names."""
        return replace(self, about=node, cause=nameless(self.message, node))


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


def folded(checks: Iterable[Check]) -> list[Check]:
    """The results, those of one cause as one: the first, with the number and the first names."""
    alike: dict[object, list[Check]] = {}
    for number, check in enumerate(checks):
        key = (check.name, check.status, check.cause) if check.cause else number
        alike.setdefault(key, []).append(check)
    return [_fold(group) for group in alike.values()]


def _fold(group: list[Check]) -> Check:
    first, names = group[0], list(dict.fromkeys(check.about for check in group))
    if len(group) == 1:
        return first
    return replace(first, message=f"{len(group)} alike ({named(names)}): {first.message}")
