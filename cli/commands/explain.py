"""``kubectl mig explain``: why a pod or claim waits, or where its devices are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from cli.explaining.explain import Explainer, ObjectExplanation
from cli.explaining.findings import Progress
from cli.explaining.seats import Seat
from cli.explaining.waiting import slots_of, text_of
from cli.facts import ClusterFacts, Told, read_facts
from cli.output import CliError, Exit, Output, counted, named
from cli.session import Session, evaluator
from cli.site import Site, Slot
from dra.allocator.explain.answers import AnswerReason, GpuAnswer, NodeAnswer
from dra.common.resources import PODS, ObjectKey
from dra.kube.errors import ObjectNotFoundError
from dra.pods.pods import Pod, read_pod

_SHOWN_LINES = 16
_SHOWN_TOLD = 4
_POD = ("pod", "pods", "po")
_CLAIM = ("claim", "claims", "resourceclaim", "resourceclaims")
_STATES = {
    Progress.RUNNING: "runs",
    Progress.ALLOCATED: "has its slices",
    Progress.STARTING: "has its slices and does not run yet",
    Progress.WAITING: "waits",
    Progress.ENDING: "is being deleted",
    Progress.ENDED: "has ended",
}


def run(session: Session, *, subject: Sequence[str]) -> int:
    """Explain one object; returns 1 when something stands in its way."""
    kind, name = _subject(subject)
    with evaluator() as asked:
        facts = read_facts(session, session.namespace)
        found = _explain(Explainer(facts, asked), session, facts, kind=kind, name=name)
    if session.out.is_json:
        session.out.json("Explanation", _json(found, facts))
    else:
        _show(found, facts, session.out)
    wrong = found.verdict.state is Progress.WAITING or found.verdict.findings
    return Exit.FINDING if wrong else Exit.OK


def _explain(
    explainer: Explainer, session: Session, facts: ClusterFacts, *, kind: str, name: str
) -> ObjectExplanation:
    key = (session.namespace, name)
    if kind != "claim" and (pod := _pod(session, facts, key)) is not None:
        return explainer.pod(pod)
    if kind != "pod" and key in facts.claims:
        return explainer.claim(facts.claims[key])
    what = {"pod": "pod", "claim": "ResourceClaim"}.get(kind, "pod or ResourceClaim")
    raise CliError(Exit.NOT_FOUND, f"there is no {what} {'/'.join(key)}")


def _subject(words: Sequence[str]) -> tuple[str, str]:
    """Kind and name of ``NAME``, ``KIND NAME`` or ``KIND/NAME``; the kind is empty for ``NAME``.

    Raises:
        CliError: the words are none of these.
    """
    kind, _, name = "/".join(words).rpartition("/")
    if not kind and name:
        return "", name
    if not name or "/" in kind:
        raise CliError(
            Exit.USAGE, f"{' '.join(words)!r} is no NAME, pod NAME or claim NAME; explain takes one"
        )
    if kind.lower() in _POD:
        return "pod", name
    if kind.lower().partition(".")[0] in _CLAIM:
        return "claim", name
    raise CliError(Exit.USAGE, f"{kind!r} is neither pod nor claim; write pod {name}")


def _pod(session: Session, facts: ClusterFacts, key: ObjectKey) -> Pod | None:
    """The pod, also one that has ended, which ``facts`` leave out."""
    if key in facts.pods:
        return facts.pods[key]
    try:
        return read_pod(session.api.get(PODS, key[1], namespace=key[0]))
    except ObjectNotFoundError:
        return None


def _show(found: ObjectExplanation, facts: ClusterFacts, out: Output) -> None:
    what, verdict = "pod" if found.kind == "Pod" else "claim", found.verdict
    name = "/".join(found.key)
    out.line(f"{out.bold(f'{what} {name}')} {_STATES[verdict.state]}")
    said = [each.message for each in verdict.findings]
    for seat in found.seats:
        known = any(seat.message in text for text in said)
        out.line(f"  {_seat(replace(seat, message='') if known else seat, facts.site)}")
    for number, each in enumerate(verdict.findings):
        paint = out.bad if number == 0 and verdict.state is Progress.WAITING else out.odd
        out.paragraph("  ", f"{paint(each.reason)}: ", each.message)
        if each.remedy not in each.message:
            out.paragraph("    ", "> ", each.remedy)
    new = [t for t in found.told if not any(t.message in s or s in t.message for s in said)]
    _show_events(new[:_SHOWN_TOLD] if said else (), out)
    if verdict.nodes:
        out.line()
        if verdict.wanted:
            out.line(f"wanted: {', '.join(verdict.wanted)}")
    _show_nodes(verdict.nodes, facts.site, out, said=said)
    if facts.unread:
        out.line(out.odd(f"not allowed to read, so left out: {', '.join(facts.unread)}"))


def _show_events(events: Sequence[Told], out: Output) -> None:
    """Print events, as possibly anybody's: neither source nor field manager proves a writer."""
    if events:
        out.line(out.dim("  events, of whoever may create some in the namespace:"))
    for each in events:
        said = f"{each.reason} ({each.at}): {each.message}"
        out.paragraph("    ", out.dim(f"{each.source or 'nobody'}: "), said)


def _show_nodes(
    nodes: Mapping[str, NodeAnswer], site: Site, out: Output, *, said: Sequence[str]
) -> None:
    """Print the answers of nodes, and of GPUs that say the same in a line.

    If they are many they are counted by reason, unless all are asked for. What is ``said`` above is
    left out.
    """
    lines: list[tuple[str, str, str]] = []
    for name, node in nodes.items():
        message = "" if any(node.message in text for text in said) else f": {node.message}"
        paint = out.good if node.fits else out.bold
        lines.append(("  ", f"{paint(name)}  ", f"{node.reason}{message}"))
        texts: dict[str, list[str]] = {}
        for gpu in node.gpus:
            texts.setdefault(_said(gpu, name, site), []).append(gpu.name)
        lines += [("    ", f"{', '.join(names)}  ", text) for text, names in texts.items()]
    if out.form != "wide" and len(lines) > _SHOWN_LINES:
        _count_nodes(nodes, out)
        return
    for line in lines:
        out.paragraph(*line)


def _count_nodes(nodes: Mapping[str, NodeAnswer], out: Output) -> None:
    """Print a line for each reason of nodes, with the reasons of their GPUs, each with numbers."""
    by_reason: dict[str, list[str]] = {}
    for name, node in nodes.items():
        by_reason.setdefault(node.reason, []).append(name)
    for reason, names in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        gpus = Counter(gpu.reason for name in names for gpu in nodes[name].gpus)
        of_gpus = ", ".join(f"{count} {why}" for why, count in gpus.most_common())
        tail = f"; GPUs: {of_gpus}" if of_gpus else ""
        out.line(f"  {out.bold(counted(len(names), 'node'))} {reason}: {named(names)}{tail}")
    out.line(out.dim("  -o wide has the answer of each node and GPU"))


def _said(gpu: GpuAnswer, node: str, site: Site) -> str:
    text = text_of(site, node, gpu)
    told = set(AnswerReason) - {AnswerReason.UNAVAILABLE, AnswerReason.NOT_READY}
    return text if gpu.reason in told else f"{gpu.reason}: {text}"


def _seat(seat: Seat, site: Site) -> str:
    slot = seat.slot
    gpu, where = seat.gpu, f"{slot.where} of" if slot and slot.placement else "the whole"
    if slot is not None and slot.share is not None and slot.placement is None:
        where = "a share of"
    what = f"{where} {gpu}" if slot is not None else seat.device
    absent = "not on the node" if site.node(seat.node) is not None else "allocated"
    facts = [f for f in (slot.uuid if slot else "", slot.state if slot else absent) if f]
    facts += _shared(slot, seat.node, gpu, site) if slot is not None and slot.is_shared else []
    trouble = f" ({seat.message})" if seat.ready not in ("", "Prepared") and seat.message else ""
    return f"claim {seat.claim}: {what} on {seat.node}: {', '.join(facts)}{trouble}"


def _shared(slot: Slot, node: str, gpu: str, site: Site) -> list[str]:
    """Texts about the claim's share of a device, its pods, and the claims beside it."""
    others = [
        other.sharers
        for other in (site.slots(node, gpu) if slot.share is not None else ())
        if other.share and other.placement == slot.placement and other.claim != slot.claim
    ]
    beside = [f"beside {', '.join(others)}"] if others else []
    users = [f"used by {slot.sharers}"] if slot.pods else []
    return [slot.terms, *users, *beside]


def _json(found: ObjectExplanation, facts: ClusterFacts) -> dict[str, Any]:
    verdict = found.verdict
    return {
        "object": {"kind": found.kind, "namespace": found.key[0], "name": found.key[1]},
        "state": verdict.state.value,
        "reason": verdict.findings[0].reason if verdict.findings else "",
        "findings": [asdict(finding) for finding in verdict.findings],
        "wanted": list(verdict.wanted),
        "devices": [
            {
                "claim": str(s.claim),
                "node": s.node,
                "device": s.device,
                "reason": s.ready,
                "message": s.message,
                "slot": s.slot.as_json if s.slot else None,
            }
            for s in found.seats
        ],
        "nodes": [
            {
                "name": name,
                "reason": node.reason,
                "message": node.message,
                "gpus": [_gpu_json(gpu, name, facts.site) for gpu in node.gpus],
            }
            for name, node in verdict.nodes.items()
        ],
        "events": [asdict(told) for told in found.told],
        "unread": list(facts.unread),
    }


def _gpu_json(gpu: GpuAnswer, node: str, site: Site) -> dict[str, Any]:
    return {
        "name": gpu.name,
        "reason": gpu.reason,
        "message": text_of(site, node, gpu),
        "blockers": [s.as_json for s in slots_of(site, node, gpu)],
    }
