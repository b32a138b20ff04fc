"""Fit of a pod on a node, in the words of kube-scheduler. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from dra.common.quantity import parse_quantity
from dra.common.resources import Obj, at

Amounts = dict[str, Fraction]
"""Resource name to amount: cores, bytes, or a count."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node and what its pods ask for together; ``requested`` counts ``pods`` as well."""

    node: Obj
    requested: Mapping[str, Fraction] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The node's name."""
        return str(self.node["metadata"]["name"])

    @property
    def allocatable(self) -> Amounts:
        """Resources that the node can give to pods."""
        offered = at(self.node, "status", "allocatable", default={})
        return {name: parse_quantity(amount) for name, amount in offered.items()}


def requests(pod: Obj) -> Amounts:
    """Requests of a pod: its containers and sidecars together, or its largest init container.

    ``pods`` is 1.
    """
    spec = pod["spec"]
    total: Amounts = {}
    for container in spec.get("containers", ()):
        _add(total, _container_requests(container))
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container in spec.get("initContainers", ()):
        wanted = _container_requests(container)
        if container.get("restartPolicy") == "Always":
            _add(sidecars, wanted)
            wanted = dict(sidecars)
        else:
            _add(wanted, sidecars)
        peak = {
            name: max(peak.get(name, Fraction()), amount) for name, amount in wanted.items()
        } | {name: amount for name, amount in peak.items() if name not in wanted}
    _add(total, sidecars)
    for name, amount in peak.items():
        total[name] = max(total.get(name, Fraction()), amount)
    _add(total, {n: parse_quantity(a) for n, a in spec.get("overhead", {}).items()})
    return total | {"pods": Fraction(1)}


def rejection(pod: Obj, view: NodeView) -> tuple[str, str]:
    """``(plugin, reason)`` of the first plugin that rejects the node; two "" when none does."""
    spec = view.node.get("spec", {})
    tolerations = pod["spec"].get("tolerations", ())
    if spec.get("unschedulable") and not any(
        tolerates(t, {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"})
        for t in tolerations
    ):
        return "NodeUnschedulable", "node(s) were unschedulable"
    if taint := untolerated_taint(spec.get("taints", ()), tolerations):
        return "TaintToleration", f"node(s) had untolerated taint {{{taint}}}"
    if not matches_affinity(pod, view.node):
        return "NodeAffinity", "node(s) didn't match Pod's node affinity/selector"
    return _resources(pod, view)


def _resources(pod: Obj, view: NodeView) -> tuple[str, str]:
    allocatable = view.allocatable
    short = []
    for name, wanted in requests(pod).items():
        room = allocatable.get(name, Fraction()) - view.requested.get(name, Fraction())
        if wanted > room:
            short.append("Too many pods" if name == "pods" else f"Insufficient {name}")
    return ("NodeResourcesFit", ", ".join(short)) if short else ("", "")


def least_allocated(pod: Obj, view: NodeView) -> Fraction:
    """Share of cpu and memory that stays free, averaged; the higher the better."""
    wanted = requests(pod)
    allocatable = view.allocatable
    shares = []
    for name in ("cpu", "memory"):
        whole = allocatable.get(name, Fraction())
        used = view.requested.get(name, Fraction()) + wanted.get(name, Fraction())
        shares.append((whole - used) / whole if whole else Fraction())
    return sum(shares, Fraction()) / len(shares)


def untolerated_taint(
    taints: Iterable[Mapping[str, str]], tolerations: Sequence[Mapping[str, Any]]
) -> str:
    """``key: value`` of the first taint that keeps the pod away, or ""."""
    for taint in taints:
        if taint["effect"] == "PreferNoSchedule":
            continue
        if not any(tolerates(toleration, taint) for toleration in tolerations):
            return f"{taint['key']}: {taint.get('value', '')}"
    return ""


def tolerates(toleration: Mapping[str, Any], taint: Mapping[str, str]) -> bool:
    """True if a toleration covers a taint."""
    if toleration.get("effect") not in {None, "", taint["effect"]}:
        return False
    key = toleration.get("key") or ""
    if toleration.get("operator", "Equal") == "Exists":
        return key in {"", taint["key"]}
    return key == taint["key"] and (toleration.get("value") or "") == taint.get("value", "")


def matches_affinity(pod: Obj, node: Obj) -> bool:
    """The pod's nodeSelector and its required node affinity."""
    labels = node["metadata"].get("labels", {})
    if any(labels.get(k) != v for k, v in pod["spec"].get("nodeSelector", {}).items()):
        return False
    affinity = at(pod["spec"], "affinity", "nodeAffinity", default={})
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return required is None or matches_selector(required, node)


def matches_selector(selector: Mapping[str, Any], node: Obj) -> bool:
    """A NodeSelector: one of its terms holds; a term without any expression holds for no node."""
    labels = node["metadata"].get("labels", {})
    fields = {"metadata.name": node["metadata"]["name"]}
    for term in selector.get("nodeSelectorTerms", ()):
        expressions = [(e, labels) for e in term.get("matchExpressions", ())]
        expressions += [(e, fields) for e in term.get("matchFields", ())]
        if expressions and all(_holds(e, values) for e, values in expressions):
            return True
    return False


def _holds(expression: Mapping[str, Any], values: Mapping[str, str]) -> bool:
    key, operator = expression["key"], expression["operator"]
    wanted = expression.get("values") or ()
    value = values.get(key)
    holds = {
        "In": value is not None and value in wanted,
        "NotIn": value is None or value not in wanted,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }
    if operator not in {"Gt", "Lt"}:
        return holds.get(operator, False)
    try:
        left, right = int(value or ""), int("".join(wanted))
    except ValueError:
        return False
    return left > right if operator == "Gt" else left < right


def _container_requests(container: Mapping[str, Any]) -> Amounts:
    resources = container.get("resources", {})
    asked = resources.get("limits", {}) | resources.get("requests", {})
    return {name: parse_quantity(amount) for name, amount in asked.items()}


def _add(total: Amounts, more: Mapping[str, Fraction]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, Fraction()) + amount
