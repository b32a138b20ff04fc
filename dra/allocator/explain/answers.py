"""Answers of nodes and GPUs to a problem as values, and the message of an event about them.

Names of claims in other namespaces than the pod's are left out of an event: its readers may not be
allowed to know them. ``kubectl mig explain`` names them to users who may read them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from dra.claims.reasons import NodeReason, Obstacle, Reason
from dra.gpu.holdings import Holding
from dra.gpu.inventory import GpuReason


class AnswerReason(StrEnum):
    """Reasons of nodes and GPUs, besides those of ``MisfitReason`` and ``GpuReason``."""

    FITS = "Fits"
    NO_ROOM = "NoRoom"
    NO_ROOM_TOGETHER = "NoRoomTogether"
    FOREIGN = NodeReason.FOREIGN
    RECLAIMING = "Reclaiming"
    HELD_WHOLE = "HeldWhole"
    NO_SUCH_DEVICE = "NoSuchDevice"
    MIG_OFF = GpuReason.MIG_OFF
    MODE_PENDING = GpuReason.MIG_PENDING
    DRAINED = GpuReason.DRAINED
    NOT_READY = GpuReason.NOT_READY
    UNAVAILABLE = GpuReason.UNAVAILABLE


@dataclass(frozen=True, slots=True)
class GpuAnswer:
    """Answer of a GPU: it could serve what is asked for now, or why not and because of whom.

    ``name``: empty where the answer is that of several GPUs. ``least``, of a full answer: number of
    the first ``blockers`` that would be enough if they went. ``cost``, of a full answer: weight of
    these, to compare GPUs.
    """

    name: str
    reason: str
    message: str
    blockers: tuple[Holding, ...] = ()
    least: int = 0
    cost: int = 0


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """Answer of a node: it could serve everything now, or why not.

    ``reason``: that of the node's misfit, if it has one. ``message``: empty where the answers of
    its GPUs say all.
    """

    reason: str
    message: str = ""
    gpus: tuple[GpuAnswer, ...] = ()

    @property
    def fits(self) -> bool:
        """True if nothing of this node stands in the way."""
        return self.reason == AnswerReason.FITS


@dataclass(frozen=True, slots=True)
class Explanation:
    """Explanation why a problem is not solved.

    ``namespace``: the pod's. ``obstacle``: stands in the way on all nodes, whatever is free there.
    ``nodes``: their answers by name. Empty where they do not apply: ``given_up`` says that the
    search was too hard, ``others`` what is true of other alternatives.
    """

    namespace: str
    obstacle: Obstacle | None = None
    nodes: Mapping[str, NodeAnswer] = field(default_factory=dict)
    given_up: str = ""
    others: str = ""

    @property
    def fits(self) -> bool:
        """True if a node would do."""
        return any(answer.fits for answer in self.nodes.values())


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
    return Obstacle(Reason.WAITING, message)


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


def _listed(blockers: Sequence[Holding], namespace: str) -> str:
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
