"""The message of an event or condition about an explanation, in at most 1,000 characters.

Names of claims in other namespaces than the pod's are left out: whoever reads the event may not
know of them. ``kubectl mig explain`` names them, to whom may read them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dra.allocator.explain.answers import (
    AnswerReason,
    Blocker,
    Explanation,
    GpuAnswer,
    NodeAnswer,
)
from dra.claims.reasons import Obstacle, Reason

_LIMIT = 1000
_NAMED_NODES = 3
_NAMED_HOLDERS = 4


def as_obstacle(explanation: Explanation) -> Obstacle:
    """Obstacle that the controller tells about a problem that was not solved."""
    found = explanation.obstacle or _about_nodes(explanation)
    if explanation.given_up:
        message = f"{explanation.given_up}; as far as is known: {found.message}"
        return Obstacle(Reason.SEARCH_GIVEN_UP, message[:_LIMIT])
    if explanation.others:
        return replace(found, message=f"{found.message}; {explanation.others}")
    return found


def _about_nodes(explanation: Explanation) -> Obstacle:
    if not explanation.nodes:
        return Obstacle(Reason.WAITING, "nothing is asked for")
    known: dict[int, list[str]] = {}
    texts: dict[str, list[str]] = {}
    for name, answer in explanation.nodes.items():
        names = known.get(id(answer))
        if names is None:
            text = _about_node(answer, explanation.namespace)
            names = known[id(answer)] = texts.setdefault(text, [])
        names.append(name)
    message = _joined(texts, len(explanation.nodes))
    return Obstacle(Reason.WAITING, message + explanation.schedulers)


def _about_node(answer: NodeAnswer, namespace: str) -> str:
    texts: dict[str, list[str]] = {}
    for gpu in answer.gpus:
        if gpu.reason != AnswerReason.FITS:
            texts.setdefault(_about_gpu(gpu, namespace), []).append(gpu.name)
    gpus = [f"{', '.join(names)} {text}".strip() for text, names in texts.items()]
    return "; ".join([answer.message, *gpus] if answer.message else gpus)


def _about_gpu(gpu: GpuAnswer, namespace: str) -> str:
    if not gpu.blockers:
        return gpu.message
    return f"{gpu.message} (blocked by {_listed(gpu.blockers, namespace)})"


def _listed(blockers: Sequence[Blocker], namespace: str) -> str:
    """``claims default/a, default/b, foreign instance at 0:4 and 3 more``."""
    own = [b.holder for b in blockers if b.claim_uid and b.namespace == namespace]
    others = {b.claim_uid for b in blockers if b.claim_uid and b.namespace != namespace}
    names = list(dict.fromkeys([*own, *(b.holder for b in blockers if not b.claim_uid)]))
    kind = {0: "", 1: "claim "}.get(len(set(own)), "claims ")
    more = f" and {len(names) - _NAMED_HOLDERS} more" if len(names) > _NAMED_HOLDERS else ""
    told = [f"{kind}{', '.join(names[:_NAMED_HOLDERS])}{more}"] if names else []
    if others:
        claims = "claim" if len(others) == 1 else "claims"
        told.append(f"{len(others)} {claims} of other namespaces")
    return " and ".join(told)


def _joined(texts: dict[str, list[str]], nodes: int) -> str:
    parts = []
    for text, names in sorted(texts.items(), key=lambda item: -len(item[1])):
        who = ", ".join(names) if len(names) <= _NAMED_NODES else f"{len(names)} nodes"
        parts.append(f"{who}: {text}")
    message = f"{nodes} node{'s' if nodes != 1 else ''} - " + "; ".join(parts)
    return message if len(message) <= _LIMIT else message[: _LIMIT - 3] + "..."
