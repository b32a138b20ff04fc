"""Evidence that the doctor looks at, read once, and the results of its checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from cli.facts import CHART_NAME, ClusterFacts, is_component, read_facts
from cli.output import named, nameless
from cli.session import Session
from cli.site import GpuView
from dra.common.resources import (
    CUSTOM_RESOURCE_DEFINITIONS,
    MIG_NODES,
    MUTATING_POLICIES,
    MUTATING_POLICY_BINDINGS,
    NAMESPACES,
    Obj,
    Resource,
    at,
)
from dra.kube.errors import ForbiddenError, ObjectNotFoundError

_OF_CHART = f"app.kubernetes.io/name={CHART_NAME}"
_REWRITING = "-pod-limits"
_BEFORE_1_36 = "v1beta1"
"""The version of mutating policies, where their feature gate is on."""
_OPTED_IN = "mig.dra.dev/limits=claims"


@dataclass(frozen=True, slots=True)
class Evidence:
    """Objects that were read; None stands for a kind that may not be read.

    ``by_limits``: namespaces whose pods may ask by limits. ``rewriters``: the chart's policies
    that turn limits into claims.
    """

    facts: ClusterFacts
    now: datetime
    version: str = ""
    served: tuple[str, ...] | None = None
    definition: Obj | None = None
    by_limits: tuple[str, ...] = ()
    rewriters: tuple[str, ...] | None = None

    def pods_of(self, *components: str) -> list[Obj]:
        """Pods of the driver's ``components``, by the names that the chart gives these."""
        pods = [pod.obj for pod in self.facts.pods.values()]
        return [pod for each in components for pod in pods if is_component(pod, each)]


def gather(session: Session) -> Evidence:
    """Read all evidence from the cluster."""
    opted_in = _listed(session, NAMESPACES, labels=_OPTED_IN)
    return Evidence(
        facts=read_facts(session, ""),
        now=session.now(),
        version=str(session.api.read("/version").get("gitVersion", "")),
        served=_served(session),
        definition=_definition(session),
        by_limits=tuple(n["metadata"]["name"] for n in opted_in or ()),
        rewriters=rewriters(session),
    )


def _served(session: Session) -> tuple[str, ...] | None:
    """Versions of resource.k8s.io that the server has.

    Empty when it does not know the group, None when the group may not be read.
    """
    try:
        group = session.api.read("/apis/resource.k8s.io")
    except ObjectNotFoundError:
        return ()
    except ForbiddenError:
        return None
    return tuple(str(v["version"]) for v in at(group, "versions"))


def _definition(session: Session) -> Obj | None:
    try:
        return session.api.get(CUSTOM_RESOURCE_DEFINITIONS, str(MIG_NODES))
    except (ObjectNotFoundError, ForbiddenError):
        return None


def rewriters(session: Session) -> tuple[str, ...] | None:
    """Policies of the chart that turn limits into claims; None if they may not be read."""
    policies, bindings = (
        _listed(session, resource, labels=_OF_CHART)
        or _listed(session, replace(resource, version=_BEFORE_1_36), labels=_OF_CHART)
        for resource in (MUTATING_POLICIES, MUTATING_POLICY_BINDINGS)
    )
    if policies is None or bindings is None:
        return None
    bound = {str(binding["spec"]["policyName"]) for binding in bindings}
    named = [str(each["metadata"]["name"]) for each in policies]
    return tuple(name for name in named if name in bound and name.endswith(_REWRITING))


def _listed(session: Session, resource: Resource, *, labels: str) -> list[Obj] | None:
    """Objects of a kind, none of a kind that the server lacks; None if they may not be read."""
    try:
        return session.api.list(resource, label_selector=labels).items
    except ObjectNotFoundError:
        return []
    except ForbiddenError:
        return None


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
