"""Whether a pod's claims could be served, node by node, as the controller would see it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from cli.explaining.facts import Facts
from cli.explaining.model import GpuAnswer, NodeAnswer, Why
from cli.explaining.room import Ask, Room
from cli.site.occupancy import NodeView
from dra.claims.alternatives import choices
from dra.claims.wants import ClaimWants, Want
from dra.gpu.inventory import Allocator
from dra.pods.nodefit import find_misfit
from dra.pods.nodeselector import matches_selector
from dra.pods.pods import Pod

_ALTERNATIVES = 16


@dataclass(frozen=True, slots=True)
class Problem:
    """What is to be served together: claims that wait, and where the pod must go.

    ``pins`` are the node selectors of claims of the pod that are allocated.
    """

    claims: tuple[ClaimWants, ...]
    pod: Pod | None = None
    pins: tuple[Mapping[str, Any], ...] = ()


def answer_nodes(problem: Problem, facts: Facts, room: Room) -> tuple[NodeAnswer, ...]:
    """One answer per MigNode. Raises SelectorError."""
    return tuple(_on_node(problem, n, facts, room) for n in facts.site.nodes)


def _on_node(problem: Problem, node: NodeView, facts: Facts, room: Room) -> NodeAnswer:
    misfit = _misfit(problem, node, facts)
    asks = [Ask.of(chosen) for chosen in islice(choices(problem.claims), _ALTERNATIVES)]
    answers = [_serve(ask, node, room) for ask in asks]
    answer = next((a for a in answers if a.fits), answers[0])
    if misfit is not None:
        return NodeAnswer(node.name, misfit[0], misfit[1], answer.gpus)
    stale = (facts.plugins or {}).get(node.name, "no pod of the plugin runs there")
    if facts.plugins is not None and stale:
        message = f"{answer.message}; {stale}: what this node shows may be old"
        return NodeAnswer(node.name, answer.reason, message.removeprefix("; "), answer.gpus)
    return answer


def _misfit(problem: Problem, node: NodeView, facts: Facts) -> tuple[str, str] | None:
    """Why the pod cannot go to the node, whatever its GPUs."""
    if node.inventory.allocator is not Allocator.CONTROLLER:
        return Why.BY_SCHEDULER, "its GPUs are allocated by kube-scheduler, not by the controller"
    host = facts.hosts.facts.get(node.name)
    if host is None:
        return Why.NO_NODE, "there is a MigNode but no such Node"
    pod = problem.pod
    if pod is None:
        return (Why.NOT_READY, "node not ready") if not host.ready else None
    if pod.node:
        return None if pod.node == node.name else (Why.BOUND, f"the pod is bound to {pod.node}")
    if not all(matches_selector(p, host.labels, node.name) for p in problem.pins):
        return Why.ELSEWHERE, "another claim of the pod is allocated elsewhere"
    used = facts.hosts.used(node.name, without=pod.key)
    found = find_misfit(pod.needs, host, used, delegated=facts.delegated)
    return (found.reason, found.message) if found else None


def _serve(ask: Ask, node: NodeView, room: Room) -> NodeAnswer:
    """What the GPUs say to the first want that none of them can serve, or to the largest."""
    tables = [(want, [room.on_gpu(want, v) for v in node.gpus]) for want in ask.wants]
    unserved = next((t for t in tables if all(a.reason != Why.FITS for a in t[1])), None)
    if unserved is not None:
        reason, message = _summary(unserved[0], unserved[1])
        return NodeAnswer(node.name, reason, message, tuple(unserved[1]))
    shown = tuple(tables[0][1]) if tables else ()
    if room.together(ask, node):
        return NodeAnswer(node.name, Why.FITS, "", shown)
    wanted = ", ".join(f"{w.count} x {w.class_name}" for w in ask.wants)
    message = f"each fits alone, but not together: {wanted}"
    return NodeAnswer(node.name, Why.NO_ROOM_TOGETHER, message, shown)


def _summary(want: Want, answers: Sequence[GpuAnswer]) -> tuple[str, str]:
    """The commonest reason among the GPUs that could serve ``want`` at another time."""
    able = [a for a in answers if a.reason != Why.NO_SUCH_DEVICE]
    if not able:
        return Why.NO_SUCH_DEVICE, f"no GPU has a device of class {want.class_name}"
    reason, count = Counter(a.reason for a in able).most_common(1)[0]
    if len(answers) == 1:
        return reason, ""
    return reason, f"{count} of {len(answers)} GPUs"
