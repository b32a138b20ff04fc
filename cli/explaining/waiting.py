"""Findings about claims that wait, the heaviest first, and the words for a GPU's answer. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cli.explaining.findings import Finding, Why, finding
from cli.explaining.judge import Preemption
from cli.facts import ClusterFacts, Told
from cli.output import counted, named
from cli.site import Site, Slot
from dra.allocator.explain.answers import (
    AnswerReason,
    Explanation,
    GpuAnswer,
    NodeAnswer,
    as_obstacle,
)
from dra.claims.reasons import Reason
from dra.gpu.inventory import InstanceState
from dra.kube.lease import LEADERS, leader_lease
from dra.pods.nodefit import MisfitReason

_NAMED = 4
_OF_THE_NODE = frozenset(
    {
        *(MisfitReason.BOUND, MisfitReason.ELSEWHERE, MisfitReason.NO_NODE),
        *(MisfitReason.BY_SCHEDULER, MisfitReason.SELECTOR, MisfitReason.AFFINITY),
    }
)
_LEAVING = frozenset({InstanceState.RECLAIMING.value, InstanceState.ORPHAN.value})
_ABOUT_DEVICES = frozenset({Reason.NO_SUCH_PROFILE, Reason.MIG_OFF})


def find_waiting(
    explanation: Explanation,
    facts: ClusterFacts,
    said: Told | None,
    *,
    preemption: Preemption | None = None,
) -> tuple[Finding, ...]:
    """Findings that keep a pod's claims from being served, or what ends that.

    ``said``: the controller's word by the pod's condition. It is believed where by this judgement
    the pod would fit: the controller alone knows of GPUs that failed, of room that is held back and
    of nodes that were refused.
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
        text = f"it fits on {names}: the controller is about to allocate it"
        return (finding(Why.SOON, f"{text}; {facts.led}" if facts.led else text),)
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
    lease = f"{LEADERS}/{leader_lease(facts.driver)}"
    return finding(
        Why.NOT_LEADING,
        f"no controller leads (Lease {lease} is missing or has run out): nothing is allocated",
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
    """Sort key of findings: the reason of most nodes first, nodes that can never serve last."""
    return reason == AnswerReason.NO_SUCH_DEVICE, reason in _OF_THE_NODE, -len(group)


def _impossible(explanation: Explanation) -> Finding | None:
    """Finding about an obstacle on all nodes, in the words of the controller's event.

    None also where a GPU would have such devices in MIG mode: then the answers of GPUs say more.
    """
    found = as_obstacle(explanation)
    if explanation.given_up:
        return finding(found.reason, found.message)
    if explanation.obstacle is None or found.reason is Reason.WAITING:
        return None
    nodes = explanation.nodes.values()
    if found.reason in _ABOUT_DEVICES and any(_is_able(gpu) for node in nodes for gpu in node.gpus):
        return None
    return finding(found.reason, found.message)


def _about(reason: str, group: Mapping[str, NodeAnswer], site: Site) -> Finding:
    names = named([*group], _NAMED)
    closest = _closest(reason, group)
    if closest is not None:
        node, gpu = closest
        others = sum(_is_able(g) for a in group.values() for g in a.gpus) - 1
        more = counted(others, "more GPU")
        tail = f" ({more} on {names} cannot either)" if others > 0 else ""
        text = f"{node} {gpu.name}: {text_of(site, node, gpu)}{tail}"
        return finding(reason, text, site.gpu(node, gpu.name))
    texts = dict.fromkeys(a.message for a in group.values() if a.message)
    told = "; ".join([*texts][:_NAMED]) or "has no such device"
    return finding(reason, f"{names}: {told}")


def _closest(reason: str, group: Mapping[str, NodeAnswer]) -> tuple[str, GpuAnswer] | None:
    """The node and GPU with this reason for which least would have to go."""
    found = [(name, g) for name, a in group.items() for g in a.gpus if g.reason == reason]
    return min(found, key=lambda f: (f[1].cost, f[0], f[1].name)) if found else None


def _is_able(answer: GpuAnswer) -> bool:
    """True if the GPU could give what is asked for, now or later."""
    return answer.reason != AnswerReason.NO_SUCH_DEVICE


def slots_of(site: Site, node: str, answer: GpuAnswer) -> tuple[Slot, ...]:
    """The slots of the answer's blockers, in their order."""
    slots = site.slots(node, answer.name)
    held = {(s.claim.uid if s.claim else "", s.placement): s for s in slots}
    found = (held.get((b.claim_uid, b.placement)) for b in answer.blockers)
    return tuple(slot for slot in found if slot is not None)


def text_of(site: Site, node: str, answer: GpuAnswer) -> str:
    """The answer in words, naming the fewest that would have to go."""
    if not answer.blockers:
        return answer.message
    least = replace(answer, blockers=answer.blockers[: answer.least])
    slots = slots_of(site, node, least)
    who = ", ".join(f"{_who(s)} ({s.where}{_state(s)})" for s in slots)
    more = len(answer.blockers) - answer.least
    tail = f"; {more} more hold{'s' if more == 1 else ''} the rest" if more > 0 else ""
    return f"{answer.message} (blocked by {who}{tail})"


def _who(slot: Slot) -> str:
    if slot.claim is None:
        users = f", {slot.message}," if slot.message and slot.state == "foreign" else ""
        return f"a {slot.state} instance{users}"
    pods = f" of pod {', '.join(slot.pods)}" if slot.pods else ""
    return f"claim {slot.claim}{pods}"


def _state(slot: Slot) -> str:
    if slot.state in _LEAVING:
        return f", {slot.state}{': ' + slot.message if slot.message else ''}"
    return ""
