"""Explanation of one pod or claim: what it has, what it wants, and why it cannot have that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from cli.explaining.findings import Finding, Progress, Why, finding
from cli.explaining.judge import Judge, pod_of
from cli.explaining.seats import Seat, find_seated, seats_of
from cli.explaining.waiting import find_waiting
from cli.facts import ClusterFacts, Told
from cli.output import named
from dra.allocator.explain.answers import AnswerReason, NodeAnswer
from dra.allocator.problem import Incomplete, Problem, Satisfied
from dra.cel.questions import Evaluator, SelectorError
from dra.claims.classes import no_such_class
from dra.claims.reader import Fault, KnownClaim
from dra.claims.reasons import Reason
from dra.claims.wants import ClaimWants
from dra.common.resources import Obj, ObjectKey, at
from dra.gpu.inventory import AllocatorKind
from dra.limits.asks import CORES, GPUS, MEMORY, is_zero
from dra.limits.others import GPUS_ALONE, renamed
from dra.pods.pods import Pod, with_claim

_NOT_MADE = "FailedResourceClaimCreation"
_PROFILE_LIMIT = "nvidia.com/mig-"


@dataclass(frozen=True, slots=True)
class Verdict:
    """State of a pod or claim.

    ``findings``: in order of weight; the first is the blocker. ``nodes``: their answers by name.
    ``wanted``: in words, what is asked for.
    """

    state: Progress
    findings: tuple[Finding, ...] = ()
    nodes: Mapping[str, NodeAnswer] = field(default_factory=dict)
    wanted: tuple[str, ...] = ()

    def plus(self, more: Finding) -> Verdict:
        """The verdict with a further finding, of the least weight."""
        return replace(self, findings=(*self.findings, more))


@dataclass(frozen=True, slots=True)
class ObjectExplanation:
    """Verdict on one object, with the devices that it has and the events about it."""

    kind: str
    key: ObjectKey
    verdict: Verdict
    seats: tuple[Seat, ...]
    told: tuple[Told, ...]


class Explainer:
    """Explains pods and claims of one reading of the cluster; ``evaluator`` is asked for CEL."""

    def __init__(self, facts: ClusterFacts, evaluator: Evaluator) -> None:
        self._facts = facts
        self._judge = Judge(facts, evaluator)

    def pod(self, pod: Pod) -> ObjectExplanation:
        """Explanation why a pod waits for its claims, or where the devices of these are."""
        made_by_scheduler = at(pod.obj, "status", "extendedResourceClaimStatus", default={})
        if name := made_by_scheduler.get("resourceClaimName"):
            pod = with_claim(pod, "(limits)", name)
        made = [self._facts.claims[k] for k in pod.claim_keys if k in self._facts.claims]
        told = self._told(pod.obj, *(known.obj for known in made))
        seats = tuple(s for known in made for s in seats_of(known, self._facts))
        verdict = self._before_claims(pod)
        verdict = verdict or (
            self._said(pod, made) if self._facts.is_partial else self._unserved(pod, made)
        )
        verdict = verdict or self._seated(pod, seats, told)
        going = [str(known.claim.ref) for known in made if known.claim.deleting]
        if going and seats and not pod.deleting:
            text = f"claim {', '.join(going)} is being deleted, and goes with the pod"
            verdict = verdict.plus(finding(Why.CLAIM_GOING, text))
        return ObjectExplanation("Pod", pod.key, verdict, seats, told)

    def claim(self, known: KnownClaim) -> ObjectExplanation:
        """Explanation why a claim waits, or where its devices are.

        That of its pod, if one refers to the claim.
        """
        claim, key = known.claim, (known.claim.ref.namespace, known.claim.ref.name)
        told = self._told(known.obj)
        seats = seats_of(known, self._facts)
        pods = self._facts.pods_of(key)
        if claim.allocation is None:
            verdict = self.pod(pods[0]).verdict if pods else self._unused(known)
            if pods:
                verdict = Verdict(Progress.WAITING, verdict.findings, verdict.nodes, verdict.wanted)
        elif pods:
            verdict = self._seated(min(pods, key=lambda p: p.deleting), seats, told)
        else:
            verdict = Verdict(Progress.ENDED if claim.deleting else Progress.ALLOCATED)
        if claim.deleting:
            names = [user.name for user in claim.reserved_for]
            held = f"; held by {', '.join((*names, *claim.finalizers)) or 'nothing'}"
            going = finding(Why.CLAIM_GOING, f"it is being deleted{held}")
            verdict = replace(verdict, findings=(going, *verdict.findings))
        return ObjectExplanation("ResourceClaim", key, verdict, seats, told)

    def _seated(self, pod: Pod, seats: tuple[Seat, ...], told: tuple[Told, ...]) -> Verdict:
        misfit = None
        if not (pod.node or pod.deleting or pod.gates) and seats and not self._facts.is_partial:
            misfit = self._judge.misfit(pod, seats[0].node)
        elsewhere = None
        if misfit is not None:
            text = f"its claim {seats[0].claim} is allocated on {seats[0].node} alone, where it "
            elsewhere = finding(Why.NOT_THERE, f"{text}does not fit: {misfit.message}")
        verdict = Verdict(*find_seated(pod, seats, self._facts, told, elsewhere=elsewhere))
        held = {seat.claim.key for seat in seats if seat.slot and seat.slot.profile}
        if missed := self._judge.near_miss(self._judge.wants(held)):
            return verdict.plus(finding(Reason.NEAR_MISS, missed))
        return verdict

    def _before_claims(self, pod: Pod) -> Verdict | None:
        """Verdict on a pod that has ended or lacks a claim; None if its claims decide."""
        if not pod.live:
            return Verdict(Progress.ENDED)
        if not pod.claims:
            state = Progress.RUNNING if pod.phase == "Running" else Progress.WAITING
            limits = _asked_by_limits(pod)
            if not limits:
                return Verdict(state, (finding(Why.NO_CLAIMS, "the pod has no resource claims"),))
            return Verdict(state, (_about_limits(limits, self._facts),))
        missing = [f for f in (self._unmade(pod, n, c) for n, c in pod.claims.items()) if f]
        return Verdict(Progress.WAITING, tuple(missing)) if missing else None

    def _unmade(self, pod: Pod, entry: str, name: str | None) -> Finding | None:
        """Fault of an entry of ``spec.resourceClaims``; None when its claim is there."""
        namespace = pod.key[0]
        entries = at(pod.obj, "spec", "resourceClaims")
        template = next(
            (e.get("resourceClaimTemplateName") for e in entries if e["name"] == entry), None
        )
        if name is not None:
            known = self._facts.claims.get((namespace, name))
            if known is None:
                reason = Why.CLAIM_LOST if template else Why.CLAIM_MISSING
                return finding(reason, f"ResourceClaim {namespace}/{name} is missing")
            owner = known.claim.owner_pod_uid
            if owner and owner != pod.uid:
                text = f"ResourceClaim {namespace}/{name} was made for another pod"
                return finding(Why.OTHER_OWNER, text)
            return None
        said = {told.reason: told.message for told in self._facts.told(pod.obj)}
        if template and (namespace, template) not in self._facts.templates:
            for refused in (Reason.TOO_MANY_TEMPLATES, Reason.REFUSED):
                if words := said.get(refused):
                    return finding(refused, f"an event says: {words}")
            text = f"ResourceClaimTemplate {namespace}/{template} is missing"
            return finding(Why.TEMPLATE_MISSING, text)
        why = "kube-controller-manager has not made it yet"
        if event := said.get(_NOT_MADE):
            why = f"an event says: {event}"
        return finding(Why.CLAIM_NOT_MADE, f"claim {entry!r} from template {template}: {why}")

    def _said(self, pod: Pod, made: list[KnownClaim]) -> Verdict | None:
        """Verdict by the pod's condition, where no more may be read; None if the pod has all."""
        if all(known.claim.allocation is not None for known in made):
            return None
        if said := self._facts.condition(pod):
            return Verdict(Progress.WAITING, (finding(said.reason, said.message),))
        text = "a claim of it is not allocated, and its conditions do not say why"
        return Verdict(Progress.WAITING, (finding(Why.UNREAD, text),))

    def _unserved(self, pod: Pod, made: list[KnownClaim]) -> Verdict | None:
        """Reasons why claims of a pod are not allocated; None when all of ours are."""
        examined = self._judge.examine(pod)
        found, findings = examined.found, self._about(examined.faults)
        gates = [gate for gate in pod.gates if gate != self._facts.finalizer]
        if gates and not isinstance(found, Satisfied):
            text = f"scheduling gates are set: {', '.join(gates)}"
            findings.insert(0, finding(Why.GATED, text))
        match found:
            case Satisfied(ours=True):
                return None
            case Satisfied():
                text = "none of its claims asks for devices of this driver" + self._shared(made)
                findings.append(finding(Why.NOT_OURS, text))
            case Incomplete(going):
                text = f"claim {', '.join(map(str, going))} is being deleted"
                findings.append(finding(Why.CLAIM_GOING, text))
            case Fault(obstacle=obstacle) if not examined.faults:
                findings.append(finding(obstacle.reason, obstacle.message))
            case Problem() if not gates:
                return self._waiting(found)
        return Verdict(Progress.WAITING, tuple(findings))

    def _unused(self, known: KnownClaim) -> Verdict:
        """Verdict on a claim that waits and that no pod refers to."""
        if self._facts.is_partial:
            text = "it is not allocated; ask about its pod, whose condition says why"
            return Verdict(Progress.WAITING, (finding(Why.UNREAD, text),))
        claims = self._judge.read([known])
        obstacles = self._about(claims.faults)
        if obstacles or not claims.wants:
            text = "it asks for no device of this driver" + self._shared([known])
            return Verdict(Progress.WAITING, tuple(obstacles or [finding(Why.NOT_OURS, text)]))
        consumer = finding(Why.NO_CONSUMER, "no pod refers to it")
        answers: Mapping[str, NodeAnswer] = {}
        with suppress(SelectorError):
            answers = self._judge.explain(Problem(pod_of(known.claim), claims.wants)).nodes
        return Verdict(Progress.WAITING, (consumer,), answers, _wanted(claims.wants))

    def _waiting(self, problem: Problem) -> Verdict:
        wanted = _wanted(problem.claims)
        try:
            found = self._judge.explain(problem)
            gang = self._judge.gang_obstacle(problem.pod)
            preemption = None if found.fits else self._judge.preemption(problem)
        except SelectorError as error:
            bad = finding(Reason.BAD_SELECTOR, str(error))
            return Verdict(Progress.WAITING, (bad,), wanted=wanted)
        if gang is not None:
            findings: tuple[Finding, ...] = (finding(gang.reason, gang.message),)
        else:
            said = self._facts.condition(problem.pod)
            findings = find_waiting(found, self._facts, said, preemption=preemption)
            wants = (want for claim in problem.claims for want in claim.wants)
            if unreported := self._judge.unreported(problem.pod, found.nodes):
                text = f"{named(unreported)}: the pod may go there, and no plugin reports GPUs"
                findings = (finding(Why.NO_MIGNODE, text), *findings)
            if missed := self._judge.near_miss(wants):
                findings = (*findings, finding(Reason.NEAR_MISS, missed))
        return Verdict(Progress.WAITING, findings, found.nodes, wanted)

    def _shared(self, made: list[KnownClaim]) -> str:
        """Words about a class that is missing, or that others serve too; empty without one."""
        reader = self._judge.reader
        if missing := next(filter(None, (reader.missing_class(k.claim) for k in made)), ""):
            return f": {no_such_class(missing, ())}"
        name = next(filter(None, (reader.shared_class(k.claim) for k in made)), "")
        text = f" alone: kube-scheduler serves DeviceClass {name!r}, which selects others' too"
        return text if name else ""

    def _about(self, faults: Iterable[Fault]) -> list[Finding]:
        """Findings about claims; a missing class may be due to MIG mode, or to the controller."""
        gpus = self._facts.site.gpus
        why, cause = "", ""
        if gpus and not any(v.gpu.mig_enabled for v in gpus):
            cause = AnswerReason.MIG_OFF
            why = "no GPU is in MIG mode, and classes of profiles are made once one is"
        elif self._facts.leader == "":
            cause, why = Why.NOT_LEADING, "no controller leads, which makes classes of profiles"
        found = []
        for ref, obstacle in faults:
            text = f"claim {ref}: {obstacle.message}"
            if obstacle.reason is Reason.NO_SUCH_CLASS and why:
                remedy = finding(cause, "").remedy
                found.append(Finding(str(obstacle.reason), f"{text}; {why}", remedy))
            else:
                found.append(finding(obstacle.reason, text))
        return found

    def _told(self, *objects: Obj) -> tuple[Told, ...]:
        """Events about the objects, the newest first."""
        found = [told for obj in objects for told in self._facts.told(obj)]
        return tuple(dict.fromkeys(sorted(found, key=lambda t: t.at, reverse=True)))


def _wanted(claims: Iterable[ClaimWants]) -> tuple[str, ...]:
    return tuple(
        f"{w.count} x {w.class_name}" if not w.everything else f"all of {w.class_name}"
        for c in claims
        for w in c.wants
    )


def _asked_by_limits(pod: Pod) -> Mapping[str, str]:
    """Limits of a pod's containers by which other systems give slices, each with its amount."""
    containers = [*at(pod.obj, "spec", "initContainers"), *at(pod.obj, "spec", "containers")]
    return {
        name: str(number)
        for container in containers
        for name, number in at(container, "resources", "limits", default={}).items()
        if (name == GPUS or name.startswith((_PROFILE_LIMIT, MEMORY, CORES)) or renamed(name))
        and not is_zero(number)
    }


def _about_limits(limits: Mapping[str, str], facts: ClusterFacts) -> Finding:
    """Finding about a pod that asks by limits and has no claim."""
    asked = ", ".join(f"{name}: {number}" for name, number in sorted(limits.items()))
    if others := [f"{new} for {name}" for name in sorted(limits) if (new := renamed(name))]:
        there = f"nothing here serves names of other systems: write {', '.join(others)}"
        return finding(Why.BY_LIMITS, f"the pod has no resource claim but {asked}: {there}")
    if set(limits) == {GPUS}:
        return Finding(Why.BY_LIMITS, f"the pod has no resource claim but {asked}: {GPUS_ALONE}")
    nodes = [
        n.name for n in facts.site.nodes if n.inventory.allocator is not AllocatorKind.CONTROLLER
    ]
    served = f"those are {', '.join(nodes)}" if nodes else "this cluster has none"
    profiles = sorted(n.partition("/")[2] for n in limits if n.startswith(_PROFILE_LIMIT))
    there = "That is served only as claims, which they become in namespaces that opt in"
    if profiles:
        there = (
            f"That is served only on nodes that kube-scheduler allocates (--allocator=scheduler): "
            f"{served}. As a claim it would be class {', '.join(profiles)}"
        )
    return finding(
        Why.BY_LIMITS, f"the pod has no resource claim and asks by limits: {asked}. {there}"
    )
