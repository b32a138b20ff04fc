"""Reasons why a pod waits, for the page: what explain says, and who is in the way on which GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cli.explaining.explain import Explainer, ObjectExplanation
from cli.explaining.waiting import slots_of
from cli.facts import ClusterFacts, read_facts
from cli.page.content import said
from cli.session import Session
from dra.allocator.explain.answers import GpuAnswer
from dra.cel.questions import Evaluator
from dra.common.resources import ObjectKey

_FINDINGS, _EVENTS = 12, 6
_BLOCKED = 1000
"""GPUs whose blockers are marked: those on which least would have to go come first."""


def explain_pod(session: Session, key: ObjectKey, evaluator: Evaluator) -> dict[str, Any] | None:
    """The explanation of a pod; None if there is none that has not ended.

    It is as much as the client of ``session`` may list.

    Raises:
        CliError: claims may not be listed at all.
        ForbiddenError: those of the namespace may not be listed either.
    """
    facts = read_facts(session, key[0])
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
        "blocked": blocked[:_BLOCKED],
        "more": max(0, len(blocked) - _BLOCKED),
        "unread": list(facts.unread),
    }


def _blocked(found: ObjectExplanation, facts: ClusterFacts) -> list[list[Any]]:
    """Node, GPU and the starts of the fewest slices that would have to go, the least first."""
    answers = [
        (gpu.cost, node, gpu)
        for node, answer in found.verdict.nodes.items()
        for gpu in answer.gpus
        if gpu.blockers
    ]
    answers.sort(key=lambda a: (a[0], a[1], a[2].name))
    return [[node, gpu.name, _starts(node, gpu, facts)] for _, node, gpu in answers]


def _starts(node: str, gpu: GpuAnswer, facts: ClusterFacts) -> list[int]:
    least = replace(gpu, blockers=gpu.blockers[: gpu.least])
    slots = slots_of(facts.site, node, least)
    return [s.placement.start if s.placement else 0 for s in slots]
