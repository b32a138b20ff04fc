"""Findings about claims that wait and are not served, the heaviest first. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from cli.explaining.blockers import text_of
from cli.explaining.facts import ClusterFacts
from cli.explaining.judging import Preemption, is_able, is_possible
from cli.explaining.model import Finding, Told, Why
from cli.explaining.remedies import REMEDIES
from cli.shell.output import counted, named
from cli.site.occupancy import Site
from dra.allocator.explain.answers import AnswerReason, Explanation, GpuAnswer, NodeAnswer
from dra.allocator.explain.message import as_obstacle
from dra.claims.reasons import Reason
from dra.pods.nodefit import MisfitReason

_NAMED = 4
_OF_THE_NODE = frozenset(
    {MisfitReason.BOUND, MisfitReason.ELSEWHERE, MisfitReason.NO_NODE, Why.BY_SCHEDULER}
)
_ABOUT_DEVICES = frozenset({Reason.NO_SUCH_PROFILE, Reason.MIG_OFF})


def finding(reason: str, message: str) -> Finding:
    """A finding with what can be done about it."""
    return Finding(str(reason), message, REMEDIES.get(reason, ""))


def find_waiting(
    explanation: Explanation,
    facts: ClusterFacts,
    said: Told | None,
    *,
    preemption: Preemption | None = None,
) -> tuple[Finding, ...]:
    """Findings that keep a pod's claims from being served, or what ends that.

    What the controller has ``said`` by the pod's condition goes before a judgement that it fits:
    GPUs that failed, room that is held back and nodes that were refused are known to it alone.
    """
    if not facts.site.nodes:
        missing = "no MigNode exists" if facts.installed else "the cluster knows no MigNodes"
        return (finding(Why.NO_MIGNODE, f"{missing}: no node offers GPUs"),)
    impossible = _impossible(explanation)
    if impossible is not None:
        return (impossible,)
    lead, answers = _lead(facts), explanation.nodes
    if explanation.fits:
        if lead is not None:
            return (lead,)
        names = ", ".join([name for name, a in answers.items() if a.fits][:_NAMED])
        if said is not None:
            text = f"{said.message} (said {said.at}; by what is in use now it would fit on {names})"
            return (finding(said.reason, text),)
        return (finding(Why.SOON, f"it fits on {names}: the controller is about to allocate it"),)
    groups: dict[str, dict[str, NodeAnswer]] = {}
    for name, answer in answers.items():
        groups.setdefault(answer.reason, {})[name] = answer
    found = [_about(reason, group, facts.site) for reason, group in groups.items()]
    order = {f.reason: _weight(f.reason, groups[f.reason]) for f in found}
    found.sort(key=lambda f: order[f.reason])
    if preemption is not None:
        found.insert(0, _about_preemption(preemption))
    return (*found, lead) if lead is not None else tuple(found)


def _lead(facts: ClusterFacts) -> Finding | None:
    if facts.leader is None or facts.leader:
        return None
    return finding(
        Why.NOT_LEADING,
        f"no controller leads (Lease {facts.driver}-controller is missing or has run out): "
        "nothing is allocated",
    )


def _about_preemption(preemption: Preemption) -> Finding:
    victims = preemption.victims
    number, names = counted(len(victims), "pod"), named([*map(str, victims)], _NAMED)
    return finding(
        Why.PREEMPTS,
        f"it is served on {preemption.node} once kube-scheduler has ended {number} of lower "
        f"priority there ({names}): the controller allocates it as if they were gone",
    )


def _weight(reason: str, group: Mapping[str, NodeAnswer]) -> tuple[bool, bool, int]:
    """Sort key of findings: nodes that never can are last, what most nodes say is first."""
    return reason == AnswerReason.NO_SUCH_DEVICE, reason in _OF_THE_NODE, -len(group)


def _impossible(explanation: Explanation) -> Finding | None:
    """Obstacle on all nodes, in the words of the controller's event.

    Where a GPU has such devices when MIG mode is on, the GPUs say more.
    """
    found = as_obstacle(explanation)
    if explanation.given_up:
        return finding(found.reason, found.message)
    if explanation.obstacle is None or found.reason is Reason.WAITING:
        return None
    nodes = explanation.nodes.values()
    if found.reason in _ABOUT_DEVICES and any(map(is_possible, nodes)):
        return None
    return finding(found.reason, found.message)


def _about(reason: str, group: Mapping[str, NodeAnswer], site: Site) -> Finding:
    names = named([*group], _NAMED)
    closest = _closest(reason, group)
    if closest is not None:
        node, gpu = closest
        others = sum(is_able(g) for a in group.values() for g in a.gpus) - 1
        tail = f" ({others} more GPUs on {names} cannot either)" if others > 0 else ""
        return finding(reason, f"{node} {gpu.name}: {text_of(site, node, gpu)}{tail}")
    texts = dict.fromkeys(a.message for a in group.values() if a.message)
    told = "; ".join([*texts][:_NAMED]) or "has no such device"
    return finding(reason, f"{names}: {told}")


def _closest(reason: str, group: Mapping[str, NodeAnswer]) -> tuple[str, GpuAnswer] | None:
    """The GPU with this reason that lacks least."""
    found = [(name, g) for name, a in group.items() for g in a.gpus if g.reason == reason]
    return min(found, key=lambda f: (f[1].cost, f[0], f[1].name)) if found else None
