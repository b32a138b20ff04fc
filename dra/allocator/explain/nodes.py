"""The answer of one node whose pod could go there, from those of its GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from dra.allocator.explain.answers import AnswerReason, Detail, GpuAnswer, NodeAnswer
from dra.allocator.explain.gpus import answer_gpu, names
from dra.allocator.fleet import NodeGpus
from dra.allocator.gpustate import GpuState
from dra.allocator.search.search import Search
from dra.cel.kinds import Kinds

_NEVER_OR_NOW = (AnswerReason.NO_SUCH_DEVICE, AnswerReason.FITS)
_NO_GPU = NodeAnswer(AnswerReason.NO_SUCH_DEVICE, "no GPU")


class NodeAnswers:
    """Answers to one search; brief ones are kept for nodes whose GPUs are in equal states."""

    def __init__(self, search: Search, kinds: Kinds, detail: Detail) -> None:
        self._search = search
        self._kinds = kinds
        self._detail = detail
        self._gpus: dict[object, tuple[list[int], GpuAnswer]] = {}
        self._alike: dict[frozenset[object], NodeAnswer] = {}
        """By the fingerprints of a node's GPUs: brief answers count none."""

    def of(self, node: NodeGpus) -> NodeAnswer:
        """Reason why ``node`` does not serve the search now, GPU by GPU, with who is in the way."""
        if not node.gpus:
            return _NO_GPU
        missing = [self._missing(state) for state in node.gpus]
        gpus = tuple(
            answer_gpu(self._search, state, lacks, kinds=self._kinds, detail=self._detail)
            for state, lacks in zip(node.gpus, missing, strict=True)
        )
        if set.intersection(*map(set, missing)):
            return _lacking(gpus)
        if self._detail is Detail.FULL and self._search.solution(node.gpus) is not None:
            return NodeAnswer(AnswerReason.FITS, "", gpus)
        everything = any(kind.everything for kind in self._search.types)
        told = gpus if everything or self._detail is Detail.FULL else ()
        return self._not_together(node, told)

    def brief(self, node: NodeGpus) -> NodeAnswer:
        """The same without the names of GPUs and claims, for messages without room for more."""
        if not self._search.by_fingerprint:
            return self._told(node)
        fingerprints = frozenset(node.fingerprints)
        known = self._alike.get(fingerprints)
        if known is None:
            known = self._alike[fingerprints] = self._told(node)
        return known

    def _told(self, node: NodeGpus) -> NodeAnswer:
        if not node.gpus:
            return _NO_GPU
        gpus = (
            dict(zip(node.fingerprints, node.gpus, strict=True)).values()
            if self._search.by_fingerprint
            else node.gpus
        )
        known = [self._gpu(state) for state in gpus]
        if not set(self._search.indices).intersection(*(missing for missing, _ in known)):
            return self._not_together(node, ())
        told = {answer.message: answer for _, answer in known}
        return _lacking(tuple(told.values()))

    def _gpu(self, state: GpuState) -> tuple[list[int], GpuAnswer]:
        key = state.fingerprint if self._search.by_fingerprint else state.id
        if key not in self._gpus:
            missing = self._missing(state)
            found = answer_gpu(self._search, state, missing, kinds=self._kinds, detail=Detail.BRIEF)
            self._gpus[key] = missing, GpuAnswer("", found.reason, found.message)
        return self._gpus[key]

    def _missing(self, state: GpuState) -> list[int]:
        return [i for i in self._search.indices if not self._search.has_room(state, i)]

    def _not_together(self, node: NodeGpus, gpus: tuple[GpuAnswer, ...]) -> NodeAnswer:
        search = self._search
        wanted = ", ".join(self._wanted(node, i) for i in search.indices)
        bound = "".join(
            f" with {'different' if c.distinct else 'the same'} {c.attribute}"
            for c in search.constraints
        )
        message = f"no room for {wanted} together{bound}"
        return NodeAnswer(AnswerReason.NO_ROOM_TOGETHER, message, gpus)

    def _wanted(self, node: NodeGpus, index: int) -> str:
        offers = {o.name: o for s in node.gpus for o in self._search.match(s, index).offers}
        everything = self._search.types[index].everything
        number = "all" if everything else self._search.target[index]
        return f"{number} x {names(offers.values())}"


def _lacking(gpus: Sequence[GpuAnswer]) -> NodeAnswer:
    """The commonest reason among the GPUs that could give what is missing at another time."""
    able = [g.reason for g in gpus if g.reason not in _NEVER_OR_NOW]
    reason = max(dict.fromkeys(able), key=able.count, default=AnswerReason.NO_SUCH_DEVICE)
    return NodeAnswer(reason, "", tuple(gpus))
