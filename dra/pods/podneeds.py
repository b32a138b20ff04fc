"""Needs of a pod that a node has to meet: resources, tolerations, selectors.

Amounts are whole numbers: ``cpu`` in thousandths of a core, everything else in its own unit,
rounded up, as kube-scheduler counts them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from dra.common.quantity import QuantityError, parse_quantity
from dra.common.resources import at
from dra.pods.company.terms import ALONE, Company, read_company
from dra.pods.hostports import HostPort, read_host_ports
from dra.pods.nodeselector import indexed_term

Amounts = Mapping[str, int]

CPU = "cpu"
PODS = "pods"


READ_FIELDS = (
    *("containers", "initContainers", "overhead", "resources"),
    *("nodeSelector", "affinity", "tolerations", "topologySpreadConstraints", "preemptionPolicy"),
    "hostUsers",
)
"""The fields of a pod's spec that decide its needs."""


@dataclass(frozen=True, slots=True, eq=False)
class PodNeeds:
    """The part of a pod's spec that decides where it may run.

    ``requests`` is the effective request, with one of ``pods``. ``affinity_terms`` are those of the
    required node affinity, None when there is none. ``preempts``: pods of lower priority may be
    ended for it. ``own_users``: its containers run in a user namespace of their own.
    """

    requests: Amounts = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    affinity_terms: tuple[Mapping[str, Any], ...] | None = None
    tolerations: tuple[Mapping[str, Any], ...] = ()
    host_ports: tuple[HostPort, ...] = ()
    company: Company = ALONE
    preempts: bool = True
    own_users: bool = False

    @property
    def parts(self) -> int:
        """The number of comparisons that show whether a node suits, at the most."""
        expressions = (len(at(term, "matchExpressions")) for term in self.affinity_terms or ())
        return 1 + sum(expressions) + len(self.tolerations)


def read_needs(spec: Mapping[str, Any]) -> PodNeeds:
    """The needs in a pod's ``spec``."""
    affinity = at(spec, "affinity", "nodeAffinity", default={})
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    terms = at(required or {}, "nodeSelectorTerms")
    return PodNeeds(
        requests=effective_request(spec),
        node_selector=at(spec, "nodeSelector", default={}),
        affinity_terms=None if required is None else tuple(map(indexed_term, terms)),
        tolerations=tuple(at(spec, "tolerations")),
        host_ports=read_host_ports(spec),
        company=read_company(spec),
        preempts=spec.get("preemptionPolicy") != "Never",
        own_users=spec.get("hostUsers") is False,
    )


def effective_request(spec: Mapping[str, Any]) -> dict[str, int]:
    """Resources that the scheduler reserves for a pod.

    The larger of what the containers take together and what the init containers take in their
    order, sidecars (init containers with restartPolicy Always) counting in both; pod-level
    requests replace the sum; overhead comes on top.
    """
    running: dict[str, int] = {}
    for container in at(spec, "containers"):
        _add(running, _requests(container))
    sidecars: dict[str, int] = {}
    starting: dict[str, int] = {}
    for container in at(spec, "initContainers"):
        wanted = _requests(container)
        if container.get("restartPolicy") == "Always":
            _add(sidecars, wanted)
            _raise(starting, sidecars)
        else:
            _add(wanted, sidecars)
            _raise(starting, wanted)
    _add(running, sidecars)
    _raise(running, starting)
    running |= _requests(spec)
    _add(running, amounts(at(spec, "overhead", default={})))
    _add(running, {PODS: 1})
    return running


def amounts(quantities: Mapping[str, Any]) -> dict[str, int]:
    """Whole amounts by resource; a quantity that does not parse counts as none."""
    result = {}
    for name, text in quantities.items():
        try:
            number = parse_quantity(text)
        except QuantityError:
            continue
        result[name] = ceil(number * 1000) if name == CPU else ceil(number)
    return result


def _requests(holder: Mapping[str, Any]) -> dict[str, int]:
    """Requests of a container or pod; a limit without a request is one (the API defaults it)."""
    limits = at(holder, "resources", "limits", default={})
    return amounts(limits | at(holder, "resources", "requests", default={}))


def _add(total: dict[str, int], more: Amounts) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _raise(level: dict[str, int], to: Amounts) -> None:
    for name, amount in to.items():
        level[name] = max(level.get(name, 0), amount)
