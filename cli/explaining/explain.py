"""Puts an explanation together: what a pod or claim has, wants, and cannot have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from cli.explaining.facts import ClusterFacts, ListedClaim
from cli.explaining.judging import Judge, pod_of
from cli.explaining.limits import about_limits, asked_by_limits, with_extended
from cli.explaining.model import Finding, ObjectExplanation, Progress, Seat, Told, Why
from cli.explaining.remedies import REMEDIES
from cli.explaining.seats import find_seated, seats_of
from cli.explaining.waiting import find_waiting, finding
from dra.allocator.admin_access import LOOKS_AND_HOLDS, find_mixture
from dra.allocator.explain.answers import AnswerReason, NodeAnswer
from dra.allocator.problem import Problem
from dra.cel.kinds import Kinds
from dra.cel.questions import Evaluator, SelectorError
from dra.claims.reasons import Obstacle, Reason
from dra.claims.wants import ClaimWants, Reader
from dra.common.resources import Obj, ObjectKey, at
from dra.gpu.names import finalizer
from dra.pods.pods import Pod
from dra.pods.rules import find_rules
from dra.pods.volumes.fit import find_obstacle

_NOT_MADE = "FailedResourceClaimCreation"


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The part of an explanation that has to be worked out."""

    state: Progress
    findings: tuple[Finding, ...] = ()
    nodes: Mapping[str, NodeAnswer] = field(default_factory=dict)
    wanted: tuple[str, ...] = ()


class Explainer:
    """Explains pods and claims of one reading of the cluster; ``evaluator`` is asked for CEL."""

    def __init__(self, facts: ClusterFacts, evaluator: Evaluator) -> None:
        self._facts = facts
        kinds = Kinds(evaluator)
        self._judge = Judge(facts, kinds)
        self._reader = Reader(facts.driver, kinds, facts.classes)

    def pod(self, pod: Pod) -> ObjectExplanation:
        """Explanation why a pod waits for its claims, or where they are."""
        pod = with_extended(pod)
        told = self._told(pod.obj, pod.claim_keys)
        made = [self._facts.claims[k] for k in pod.claim_keys if k in self._facts.claims]
        seats = tuple(s for known in made for s in seats_of(known, self._facts))
        verdict = self._before_claims(pod) or self._unserved(pod, made, told)
        if verdict is None:
            verdict = Conclusion(*find_seated(pod, seats, self._facts, told))
        return _explanation("Pod", pod.key, verdict, seats, told)

    def claim(self, known: ListedClaim) -> ObjectExplanation:
        """Explanation why a claim waits, or where it is: that of its pod, if one refers to it."""
        key = (known.claim.ref.namespace, known.claim.ref.name)
        told = self._told(known.obj, ())
        seats = seats_of(known, self._facts)
        pods = self._facts.pods_of(key)
        if known.claim.allocation is not None:
            verdict = self._allocated(known, pods, seats, told)
        elif pods:
            through = self.pod(pods[0])
            verdict = Conclusion(Progress.WAITING, through.findings, through.nodes, through.wanted)
        else:
            verdict = self._unused(known)
        return _explanation("ResourceClaim", key, verdict, seats, told)

    def _before_claims(self, pod: Pod) -> Conclusion | None:
        """Outcome for a pod before its claims are looked at; None if there is none yet."""
        if not pod.live:
            return Conclusion(Progress.ENDED)
        if not pod.claims:
            state = Progress.RUNNING if pod.phase == "Running" else Progress.WAITING
            if limits := asked_by_limits(pod):
                return Conclusion(state, (about_limits(limits, self._facts),))
            return Conclusion(state, (finding(Why.NO_CLAIMS, "the pod has no resource claims"),))
        missing = [f for f in (self._unmade(pod, n, c) for n, c in pod.claims.items()) if f]
        return Conclusion(Progress.WAITING, tuple(missing)) if missing else None

    def _unserved(
        self, pod: Pod, made: list[ListedClaim], told: tuple[Told, ...]
    ) -> Conclusion | None:
        """Reasons why claims of a pod are not allocated; None when all of ours are."""
        wants, pins, obstacles = self._read(made)
        gates = [g for g in pod.gates if g != finalizer(self._facts.driver)]
        going = [str(w.claim.ref) for w in wants if w.claim.deleting]
        if gates and wants:
            text = f"scheduling gates are set: {', '.join(gates)}"
            obstacles.insert(0, finding(Why.GATED, text))
        if going:
            text = f"claim {', '.join(going)} is being deleted"
            obstacles.append(finding(Why.CLAIM_GOING, text))
        mixture = find_mixture(wants)
        if mixture is not None:
            text = f"claim {mixture}: {LOOKS_AND_HOLDS.message}"
            obstacles.append(finding(LOOKS_AND_HOLDS.reason, text))
        if obstacles:
            return Conclusion(Progress.WAITING, tuple(obstacles))
        if wants:
            missing = None if pod.node else find_obstacle(pod, self._facts.hosts.volumes)
            if missing is not None:
                return Conclusion(Progress.WAITING, (finding(missing.reason, missing.message),))
            rules = find_rules(pod, self._facts.hosts)
            return self._waiting(Problem(pod, tuple(wants), tuple(pins), rules=rules), told)
        if any(self._is_ours(k) for k in made):
            return None
        text = "none of its claims asks for devices of this driver"
        return Conclusion(Progress.WAITING, (finding(Why.NOT_OURS, text),))

    def _allocated(
        self,
        known: ListedClaim,
        pods: list[Pod],
        seats: tuple[Seat, ...],
        told: tuple[Told, ...],
    ) -> Conclusion:
        if known.claim.deleting and not known.claim.reserved_for:
            held = ", ".join(known.claim.finalizers) or "nothing"
            text = f"it is being deleted; finalizers: {held}"
            return Conclusion(Progress.ENDED, (finding(Why.CLAIM_GOING, text),))
        user = next((p for p in pods if not p.deleting), None)
        if user is None:
            return Conclusion(Progress.ALLOCATED)
        return Conclusion(*find_seated(user, seats, self._facts, told))

    def _unused(self, known: ListedClaim) -> Conclusion:
        """A claim that waits and that no pod refers to."""
        wants, _, obstacles = self._read([known])
        if obstacles or not wants:
            ours = obstacles or [finding(Why.NOT_OURS, "it asks for no device of this driver")]
            return Conclusion(Progress.WAITING, tuple(ours))
        consumer = finding(Why.NO_CONSUMER, "no pod refers to it")
        answers: Mapping[str, NodeAnswer] = {}
        with suppress(SelectorError):
            answers = self._judge.explain(Problem(pod_of(known.claim), tuple(wants))).nodes
        return Conclusion(Progress.WAITING, (consumer,), answers, _wanted(wants))

    def _waiting(self, problem: Problem, told: tuple[Told, ...]) -> Conclusion:
        wanted = _wanted(problem.claims)
        try:
            found = self._judge.explain(problem)
        except SelectorError as error:
            bad = finding(Reason.BAD_SELECTOR, str(error))
            return Conclusion(Progress.WAITING, (bad,), wanted=wanted)
        return Conclusion(
            Progress.WAITING, find_waiting(found, self._facts, told), found.nodes, wanted
        )

    def _read(
        self, made: list[ListedClaim]
    ) -> tuple[list[ClaimWants], list[Mapping[str, Any]], list[Finding]]:
        """Wants still to be served, node selectors of what is served, and faults."""
        wants: list[ClaimWants] = []
        pins: list[Mapping[str, Any]] = []
        obstacles: list[Finding] = []
        for known in made:
            if known.claim.allocation is not None:
                selector = known.obj["status"]["allocation"].get("nodeSelector")
                pins += [selector] if selector is not None else []
                continue
            read = self._reader.read(known.claim)
            if isinstance(read, Obstacle):
                text = f"claim {known.claim.ref}: {read.message}"
                obstacles.append(self._obstacle(read.reason, text))
            elif read is not None:
                wants.append(read)
        return wants, pins, obstacles

    def _obstacle(self, reason: Reason, text: str) -> Finding:
        """A finding; classes of profiles are missing for another reason where MIG mode is off."""
        gpus = self._facts.site.gpus
        if reason is Reason.NO_SUCH_CLASS and gpus and not any(v.gpu.mig_enabled for v in gpus):
            text += "; no GPU is in MIG mode, and classes of profiles are made once one is"
            return Finding(str(reason), text, REMEDIES[AnswerReason.MIG_OFF])
        return finding(reason, text)

    def _is_ours(self, known: ListedClaim) -> bool:
        allocation = known.claim.allocation
        return allocation is not None and bool(allocation.of_driver(self._facts.driver))

    def _unmade(self, pod: Pod, entry: str, name: str | None) -> Finding | None:
        """Fault of an entry of ``spec.resourceClaims``; None when its claim is there."""
        namespace = pod.key[0]
        if name is not None:
            known = self._facts.claims.get((namespace, name))
            if known is None:
                return finding(Why.CLAIM_MISSING, f"ResourceClaim {namespace}/{name} is missing")
            owner = known.claim.owner_pod_uid
            if owner and owner != pod.uid:
                text = f"ResourceClaim {namespace}/{name} was made for another pod"
                return finding(Why.OTHER_OWNER, text)
            return None
        entries = at(pod.obj, "spec", "resourceClaims")
        template = next(e.get("resourceClaimTemplateName") for e in entries if e["name"] == entry)
        said = next((t for t in self._facts.told(pod.obj) if t.reason == _NOT_MADE), None)
        if template and (namespace, template) not in self._facts.templates:
            text = f"ResourceClaimTemplate {namespace}/{template} is missing"
            return finding(Why.TEMPLATE_MISSING, text)
        why = said.message if said else "kube-controller-manager has not made it yet"
        return finding(Why.CLAIM_NOT_MADE, f"claim {entry!r} from template {template}: {why}")

    def _told(self, obj: Obj, claims: tuple[ObjectKey, ...]) -> tuple[Told, ...]:
        known = [self._facts.claims[k].obj for k in claims if k in self._facts.claims]
        found = [t for each in (obj, *known) for t in self._facts.told(each)]
        return tuple(dict.fromkeys(sorted(found, key=lambda t: t.at, reverse=True)))


def _explanation(
    kind: str, key: ObjectKey, verdict: Conclusion, seats: tuple[Seat, ...], told: tuple[Told, ...]
) -> ObjectExplanation:
    return ObjectExplanation(
        kind,
        *key,
        verdict.state,
        verdict.findings,
        seats=seats,
        nodes=verdict.nodes,
        told=told,
        wanted=verdict.wanted,
    )


def _wanted(claims: Iterable[ClaimWants]) -> tuple[str, ...]:
    return tuple(
        f"{w.count} x {w.class_name}" if not w.everything else f"all of {w.class_name}"
        for c in claims
        for w in c.wants
    )
