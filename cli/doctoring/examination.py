"""Evidence that the doctor looks at, read once, and the results of its checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from cli.facts import ClusterFacts, is_component, read_facts
from cli.output import named, nameless
from cli.session import Session
from cli.site import GpuView
from dra.common.resources import Obj


@dataclass(frozen=True, slots=True)
class Evidence:
    """Objects that were read. ``version``: that of the API server."""

    facts: ClusterFacts
    now: datetime
    version: str = ""

    def pods_of(self, *components: str) -> list[Obj]:
        """Pods of the driver's ``components``, by the names that the chart gives these."""
        pods = [pod.obj for pod in self.facts.pods.values()]
        return [pod for each in components for pod in pods if is_component(pod, each)]


def gather(session: Session) -> Evidence:
    """Read all evidence from the cluster."""
    return Evidence(
        facts=read_facts(session, ""),
        now=session.now(),
        version=str(session.api.read("/version").get("gitVersion", "")),
    )


class Status(StrEnum):
    """Result of a check. ``WARN``: works, and not as it should; ``UNKNOWN``: could not be read."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Check:
    """One result of a check.

    ``about``: the node or GPU in question. ``cause``: results with the same cause are shown as one,
    the first. ``name``: name of the check, which the table of all checks gives to its results.
    """

    status: Status
    message: str
    remedy: str = ""
    about: str = ""
    cause: str = ""
    name: str = ""

    def of_gpu(self, view: GpuView, *, cause: str = "") -> Check:
        """This result as one about a GPU; messages that differ in names alone have one cause."""
        node, gpu = view.inventory.node, view.gpu
        text = nameless(cause or self.message, node, gpu.name, gpu.uuid)
        return replace(self, about=f"{node} {gpu.name}", cause=text)

    def of_node(self, node: str) -> Check:
        """This result as one about a node; messages that differ in names alone have one cause."""
        return replace(self, about=node, cause=nameless(self.message, node))


Examination = Callable[[Evidence], Iterator[Check]]


def ok(message: str) -> Check:
    """Result of a check that passed."""
    return Check(Status.OK, message)


def fail(message: str, remedy: str) -> Check:
    """Result of a check that failed: it does not work like this."""
    return Check(Status.FAIL, message, remedy)


def warn(message: str, remedy: str = "") -> Check:
    """Result of a check that warns: it works, and not as it should."""
    return Check(Status.WARN, message, remedy)


def unknown(message: str) -> Check:
    """Result of a check that could not be made."""
    return Check(Status.UNKNOWN, message)


def folded(checks: Iterable[Check]) -> list[Check]:
    """One result for each cause: the first, with the number and some names of all alike."""
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
