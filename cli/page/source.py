"""Answers to the page: content, and why a pod waits, with the slices in the way on each GPU."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from math import inf
from typing import Any

from cli.explaining.explain import Explainer, ObjectExplanation
from cli.explaining.waiting import slots_of
from cli.facts import ClusterFacts, Lister, find_leader, read_facts
from cli.output import natural
from cli.page.content import Content, said
from cli.page.mirrors import Mirrors
from cli.session import Session, evaluator
from dra.allocator.explain.answers import GpuAnswer
from dra.cel.questions import Evaluator
from dra.common.resources import ObjectKey
from dra.kube.errors import KubeError

_FINDINGS, _EVENTS = 12, 6
_LEADER_SECONDS = 5.0
"""Seconds after which the controller's lease is looked at again."""
_BLOCKED = 5
"""Ways out that are shown: GPUs, first those on which the least would have to go."""


class ClusterSource:
    """Answers from the mirrored cluster, with the rights of its user. Thread-safe."""

    def __init__(
        self, session: Session, mirrors: Mirrors, content: Content, evaluator: Evaluator
    ) -> None:
        self._session, self._mirrors, self._content = session, mirrors, content
        self._evaluator = evaluator
        self._lock = threading.Lock()
        self._asked, self._leaderless = -inf, False

    def data(self, since: str) -> Mapping[str, Any]:
        """Changes since a version; kinds of which not all may be listed, and stale kinds.

        ``leaderless``: no controller leads, so that nobody tells why new pods wait.
        """
        if time.monotonic() >= self._asked + _LEADER_SECONDS:
            self._asked = time.monotonic()
            with suppress(KubeError):
                self._leaderless = not find_leader(self._session, self._mirrors.listed)[0]
        # Content comes last: what is told to be loaded is in it.
        told = {"hidden": self._mirrors.hidden(), **self._mirrors.troubles()}
        return {**told, "leaderless": self._leaderless, **self._content.since(since)}

    def why(self, pod: ObjectKey) -> Mapping[str, Any] | None:
        """Explanation of a pod; they are made one after the other. Raises SandboxError."""
        with self._lock:
            return explain_pod(self._session, pod, self._mirrors.listed, self._evaluator)


@contextmanager
def mirrored(session: Session) -> Iterator[ClusterSource]:
    """A source whose mirrors run as long as the block does.

    They are of the session's namespace where not all namespaces are allowed.
    """
    content = Content(session.driver, time.monotonic, wall=session.now)
    mirrors = Mirrors(session.api, content, driver=session.driver, namespace=session.namespace)
    with evaluator() as asked:
        mirrors.start()
        try:
            yield ClusterSource(session, mirrors, content, asked)
        finally:
            mirrors.stop()


def explain_pod(
    session: Session, key: ObjectKey, listed: Lister, evaluator: Evaluator
) -> dict[str, Any] | None:
    """The explanation of a pod; None if there is no such pod that has not ended.

    It is based on the objects that ``listed`` gives.

    Raises:
        CliError: claims may not be listed at all.
        ForbiddenError: claims of the namespace may not be listed either.
    """
    facts = read_facts(session, key[0], listed=listed)
    pod = facts.pods.get(key)
    if pod is None:
        return None
    found = Explainer(facts, evaluator).pod(pod)
    blocked = _blocked(found, facts)
    return {
        "state": found.verdict.state.value,
        "wanted": [said(each) for each in found.verdict.wanted],
        "findings": [
            {"reason": said(f.reason), "message": said(f.message, 2000), "remedy": f.remedy}
            for f in found.verdict.findings[:_FINDINGS]
        ],
        "events": [
            {"source": said(t.source), "reason": said(t.reason), "message": said(t.message)}
            for t in found.told[:_EVENTS]
        ],
        "blocked": [
            [node, gpu.name, _starts(node, gpu, facts)] for node, gpu in blocked[:_BLOCKED]
        ],
        "more": max(0, len(blocked) - _BLOCKED),
        "unread": list(facts.unread),
    }


def _blocked(found: ObjectExplanation, facts: ClusterFacts) -> list[tuple[str, GpuAnswer]]:
    """Nodes and GPUs with somebody in the way: fewest, then smallest first; silent ones last."""
    silent = {node.name for node in facts.site.nodes if node.silence}
    answers = [
        (node, gpu)
        for node, answer in found.verdict.nodes.items()
        for gpu in answer.gpus
        if gpu.blockers
    ]

    def cost(answer: tuple[str, GpuAnswer]) -> tuple[Any, ...]:
        node, gpu = answer
        return node in silent, gpu.cost, _taken(gpu), natural(node), gpu.name

    return sorted(answers, key=cost)


def _taken(gpu: GpuAnswer) -> float:
    """Memory slices of those who would have to go; infinite of one that has no placement."""
    occupants = [holding.occupant for holding in gpu.blockers[: gpu.least]]
    return sum(each.placement.size if each else inf for each in occupants)


def _starts(node: str, gpu: GpuAnswer, facts: ClusterFacts) -> list[int]:
    """Starts of the fewest slices that would have to go."""
    least = replace(gpu, blockers=gpu.blockers[: gpu.least])
    slots = slots_of(facts.site, node, least)
    return [s.placement.start if s.placement else 0 for s in slots]
