"""Puts an explanation together: what a pod or claim has, wants, and cannot have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from cli.explaining.facts import ClusterFacts
from cli.explaining.gangs import GangJudge
from cli.explaining.judging import Judge, pod_of
from cli.explaining.limits import about_limits, asked_by_limits, with_extended
from cli.explaining.model import Finding, ObjectExplanation, Progress, Seat, Told, Why
from cli.explaining.remedies import REMEDIES
from cli.explaining.seats import find_seated, seats_of
from cli.explaining.waiting import find_waiting, finding
from dra.allocator.explain.answers import AnswerReason, NodeAnswer
from dra.allocator.problem import Problem, pose_problem
from dra.cel.kinds import Kinds
from dra.cel.questions import Evaluator, SelectorError
from dra.claims.classes import no_such_class
from dra.claims.reader import KnownClaim, ReadClaims, Reader, read_claims
from dra.claims.reasons import Reason
from dra.claims.wants import ClaimWants
from dra.common.resources import Obj, ObjectKey, at
from dra.gpu.names import finalizer
from dra.pods.pods import Pod

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
        self._gangs = GangJudge(facts, self._reader, self._judge.fleet)

    def pod(self, pod: Pod) -> ObjectExplanation:
        """Explanation why a pod waits for its claims, or where they are."""
        pod = with_extended(pod)
        told = self._told(pod.obj, pod.claim_keys)
        made = [self._facts.claims[k] for k in pod.claim_keys if k in self._facts.claims]
        seats = tuple(s for known in made for s in seats_of(known, self._facts))
        verdict = self._before_claims(pod)
        verdict = verdict or (
            self._said(pod, made) if self._facts.is_partial else self._unserved(pod, made)
        )
        if verdict is None:
            verdict = Conclusion(*find_seated(pod, seats, self._facts, told))
        return _explanation("Pod", pod.key, verdict, seats, told)

    def claim(self, known: KnownClaim) -> ObjectExplanation:
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

    def _said(self, pod: Pod, made: list[KnownClaim]) -> Conclusion | None:
        """The controller's word on a pod, where no more may be read; None if the pod has all."""
        if all(known.claim.allocation is not None for known in made):
            return None
        said = self._facts.condition(pod)
        if said is not None:
            return Conclusion(Progress.WAITING, (finding(said.reason, said.message),))
        text = "a claim of it is not allocated, and its conditions do not say why"
        return Conclusion(Progress.WAITING, (finding(Why.UNREAD, text),))

    def _unserved(self, pod: Pod, made: list[KnownClaim]) -> Conclusion | None:
        """Reasons why claims of a pod are not allocated; None when all of ours are."""
        claims = self._read(made)
        obstacles = self._faults(claims)
        gates = [g for g in pod.gates if g != finalizer(self._facts.driver)]
        if gates and claims.wants:
            text = f"scheduling gates are set: {', '.join(gates)}"
            obstacles.insert(0, finding(Why.GATED, text))
        if claims.going:
            text = f"claim {', '.join(map(str, claims.going))} is being deleted"
            obstacles.append(finding(Why.CLAIM_GOING, text))
        if claims.mixture is not None:
            ref, obstacle = claims.mixture
            obstacles.append(finding(obstacle.reason, f"claim {ref}: {obstacle.message}"))
        if obstacles:
            return Conclusion(Progress.WAITING, tuple(obstacles))
        if claims.wants:
            problem = pose_problem(pod, claims, self._facts.hosts)
            if isinstance(problem, Problem):
                return self._waiting(problem)
            missing = problem.obstacle
            return Conclusion(Progress.WAITING, (finding(missing.reason, missing.message),))
        if claims.ours:
            return None
        text = "none of its claims asks for devices of this driver" + self._shared(made)
        return Conclusion(Progress.WAITING, (finding(Why.NOT_OURS, text),))

    def _allocated(
        self,
        known: KnownClaim,
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

    def _unused(self, known: KnownClaim) -> Conclusion:
        """A claim that waits and that no pod refers to."""
        claims = self._read([known])
        obstacles = self._faults(claims)
        if self._facts.is_partial:
            text = "it is not allocated; ask about its pod, whose condition says why"
            return Conclusion(Progress.WAITING, (finding(Why.UNREAD, text),))
        if obstacles or not claims.wants:
            text = "it asks for no device of this driver" + self._shared([known])
            ours = obstacles or [finding(Why.NOT_OURS, text)]
            return Conclusion(Progress.WAITING, tuple(ours))
        consumer = finding(Why.NO_CONSUMER, "no pod refers to it")
        answers: Mapping[str, NodeAnswer] = {}
        with suppress(SelectorError):
            answers = self._judge.explain(Problem(pod_of(known.claim), claims.wants)).nodes
        return Conclusion(Progress.WAITING, (consumer,), answers, _wanted(claims.wants))

    def _waiting(self, problem: Problem) -> Conclusion:
        wanted = _wanted(problem.claims)
        reserved = self._facts.reserved
        made = {c.claim.ref: reserved.get(c.claim.ref.uid) for c in problem.claims}
        if all(made.values()):
            text = "; ".join(
                f"{where} is being made for claim {ref}" for ref, where in made.items()
            )
            told_of = (finding(Why.MADE_FIRST, f"{text}, which is allocated once it is there"),)
            return Conclusion(Progress.WAITING, told_of, wanted=wanted)
        try:
            found = self._judge.explain(problem)
            gang = self._gangs.find_obstacle(problem.pod)
            preemption = None if found.fits else self._judge.preemption(problem)
        except SelectorError as error:
            bad = finding(Reason.BAD_SELECTOR, str(error))
            return Conclusion(Progress.WAITING, (bad,), wanted=wanted)
        if gang is not None:
            told_of = (finding(gang.reason, gang.message),)
            return Conclusion(Progress.WAITING, told_of, found.nodes, wanted)
        said = self._facts.condition(problem.pod)
        findings = find_waiting(found, self._facts, said, preemption=preemption)
        return Conclusion(Progress.WAITING, findings, found.nodes, wanted)

    def _read(self, made: list[KnownClaim]) -> ReadClaims:
        return read_claims(made, self._reader, driver=self._facts.driver)

    def _shared(self, made: list[KnownClaim]) -> str:
        """Remark on a class that is not there, or that others may serve too; empty without one."""
        if missing := next(filter(None, (self._reader.missing_class(k.claim) for k in made)), ""):
            return f": {no_such_class(missing, ())}"
        name = next(filter(None, (self._reader.shared_class(k.claim) for k in made)), "")
        text = f" alone: kube-scheduler serves DeviceClass {name!r}, which selects others' too"
        return text if name else ""

    def _faults(self, claims: ReadClaims) -> list[Finding]:
        return [
            self._obstacle(obstacle.reason, f"claim {ref}: {obstacle.message}")
            for ref, obstacle in claims.faults
        ]

    def _obstacle(self, reason: Reason, text: str) -> Finding:
        """A finding; classes of profiles are missing for another reason where MIG mode is off."""
        gpus = self._facts.site.gpus
        if reason is Reason.NO_SUCH_CLASS and gpus and not any(v.gpu.mig_enabled for v in gpus):
            text += "; no GPU is in MIG mode, and classes of profiles are made once one is"
            return Finding(str(reason), text, REMEDIES[AnswerReason.MIG_OFF])
        return finding(reason, text)

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
        said = {told.reason: told.message for told in self._facts.told(pod.obj)}
        if template and (namespace, template) not in self._facts.templates:
            if full := said.get(Reason.TOO_MANY_TEMPLATES):
                return finding(Reason.TOO_MANY_TEMPLATES, f"an event says: {full}")
            text = f"ResourceClaimTemplate {namespace}/{template} is missing"
            return finding(Why.TEMPLATE_MISSING, text)
        why = "kube-controller-manager has not made it yet"
        if event := said.get(_NOT_MADE):
            why = f"an event says: {event}"
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
