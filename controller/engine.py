"""Decides and acts: one pod or claim at a time, on what the cluster index knows.

No threads, no waiting: the loop around it feeds changes in and calls it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from controller.allocate import Allocator, Decision, Pick, Problem
from controller.classsync import ClassSync
from controller.cleanup import Ender
from controller.cluster import Cluster, Effects
from controller.exclusions import Exclusions
from controller.explain import explain
from controller.failures import Failures
from controller.moving import Mover
from controller.observer import Observer
from controller.overtaking import Overtaking
from controller.report import Reporter
from controller.stranded import Stranded
from controller.unit import Blocked, Satisfied, examine, without_nodes
from controller.worklist import WorkList
from controller.writer import BindingForbiddenError, NotLeadingError, Writer
from dra.allocation import AllocatedDevice, Allocation
from dra.kube.errors import (
    ConflictError,
    ForbiddenError,
    InvalidError,
    KubeError,
    NotFoundError,
    UnavailableError,
)
from dra.pods import Key, Pod
from dra.reasons import Obstacle, Reason
from dra.wants import ClaimWants, Reader

_log = logging.getLogger(__name__)

LOOK_AGAIN_SECONDS = 60.0
"""How often a waiting pod is looked at although nothing happened."""

SWEEP_SECONDS = 0.05
"""At most so often all waiting pods are looked at because something became free."""


@dataclass(frozen=True, slots=True, eq=False)
class _Attempt:
    """A write whose outcome is unknown."""

    wants: ClaimWants
    decision: Decision

    @property
    def picks(self) -> tuple[Pick, ...]:
        return self.decision.of(self.wants.claim.ref)


class Engine:
    """The controller's logic. Owned by one thread; ``now`` gives monotonic seconds."""

    def __init__(  # noqa: PLR0913 - its collaborators
        self,
        cluster: Cluster,
        reader: Reader,
        *,
        writer: Writer,
        reporter: Reporter,
        gate: str,
        now: Callable[[], float],
        observer: Observer | None = None,
    ) -> None:
        self._cluster = cluster
        self._reader = reader
        self._writer = writer
        self._reporter = reporter
        self._gate = gate
        self._now = now
        self._observer = observer or Observer()
        self._allocator = Allocator(cluster.fleet, cluster.hosts)
        self._ender = Ender(cluster, writer, now)
        self._mover = Mover(cluster, reader, writer, self._allocator)
        self._exclusions = Exclusions(now)
        self._stranded = Stranded(cluster, writer, reporter, self._exclusions)
        self._failures = Failures()
        self._overtaking = Overtaking(cluster, self._allocator, reporter, now=now)
        self._pods: WorkList[Key] = WorkList(now)
        self._claims: WorkList[Key] = WorkList(now)
        self._waiting: set[Key] = set()
        self._attempts: dict[str, _Attempt] = {}
        self._delegated: frozenset[str] = frozenset()
        self._classes = ClassSync(cluster, writer, reporter, now)
        self._last_sweep = float("-inf")

    def absorb(self) -> None:
        """Turn the effects of changes into work."""
        effects = self._cluster.take_effects()
        for taken in effects.taken_back:
            self._refuse(taken.claim, taken.node)
        for node in effects.nodes:
            self._exclusions.ease(node)
        for uid in effects.gone_pods:
            self._exclusions.forget(uid)
            self._reporter.forget(pod_uid=uid, gone=True)
            self._overtaking.leaves(uid)
        for uid in effects.gone_claims:
            self._reporter.forget(claim_uid=uid)
            self._attempts.pop(uid, None)
        for key in effects.claims:
            self._claims.add(key, 0)
        for key in effects.pods:
            self._add(key)
        if effects.classes:
            self._delegated = frozenset(
                c.extended_resource for c in self._cluster.classes.values() if c.extended_resource
            )
            self._classes.request()
        if effects.room or effects.classes:
            self._failures.forget()
        if effects.room and self._waiting:
            self._sweep(effects)

    def work(self) -> bool:
        """Do one piece of work; False when nothing is due.

        Raises:
            NotLeadingError: nothing may be written any more.
        """
        if self._classes.sync_if_due():
            return True
        claim = self._claims.pop()
        if claim is not None:
            self._guarded(self._claims, claim, lambda: self._end(claim))
            return True
        pod = self._pods.pop()
        if pod is not None:
            self._guarded(self._pods, pod, lambda: self._serve(pod))
            return True
        return False

    def next_due(self) -> float | None:
        """The monotonic time of the next piece of work, None when there is none."""
        times = [self._claims.next_due(), self._pods.next_due(), self._classes.due]
        return min((t for t in times if t is not None), default=None)

    def _end(self, key: Key) -> None:
        if self._stranded.look_at(key):
            return
        again = self._ender.look_at(key)
        if again is not None:
            self._claims.add(key, 0, at=again)

    # -- pods

    def _add(self, key: Key, *, at: float | None = None) -> None:
        pod = self._cluster.pods.get(key)
        if pod is not None and pod.claims:
            self._pods.add(key, _urgency(pod), at=at)
        elif key in self._waiting:
            self._waiting.discard(key)

    def _sweep(self, effects: Effects) -> None:
        at = max(self._now(), self._last_sweep + SWEEP_SECONDS)
        self._last_sweep = at
        for key in self._waiting - effects.pods:
            self._add(key, at=at)

    def _serve(self, key: Key) -> None:
        pod = self._cluster.pods.get(key)
        self._waiting.discard(key)
        if pod is None or not pod.pending or any(g != self._gate for g in pod.gates):
            # Whoever holds another gate may still change where the pod can go.
            if pod is not None:
                self._reporter.forget(pod_uid=pod.uid)
            return
        self._repeat_attempts(pod)
        if any(self._stranded.look_at(k) for k in pod.claim_keys):
            return  # a claim that has changed brings its pods here again
        found = examine(pod, self._cluster, self._reader)
        if isinstance(found, Satisfied):
            self._reporter.forget(pod_uid=pod.uid)
            self._overtaking.leaves(pod.uid)
            if found.ours and self._gate in pod.gates:
                self._writer.lift_gate(pod, self._gate)
                _log.info("gate lifted", extra={"pod": str(pod)})
        elif isinstance(found, Blocked):
            self._wait(pod, found.obstacle, [found.claim])
        elif isinstance(found, Problem):
            self._allocate(pod, without_nodes(found, self._exclusions.excluded(pod.uid)))

    def _allocate(self, pod: Pod, problem: Problem) -> None:
        with self._overtaking.letting_by(pod) as alone:
            obstacle = None if alone else self._failures.get(problem)
            decision = None if obstacle else self._decide(problem)
            if decision is None and self._mover.move(pod, problem, self._delegated):
                return
            if decision is None and obstacle is None:
                obstacle = explain(problem, self._allocator, self._cluster.fleet, self._delegated)
                self._failures.add(problem, obstacle)
        if decision is None and obstacle is not None:
            if obstacle.reason is Reason.WAITING:
                self._overtaking.waits(
                    pod, _urgency(pod), problem=problem, delegated=self._delegated
                )
            refs = [c.claim.ref for c in problem.claims]
            self._wait(pod, obstacle, [(r.namespace, r.name) for r in refs])
        if decision is None:
            return
        for wants in problem.claims:
            self._write(pod, _Attempt(wants, decision))
        self._overtaking.served(pod, _urgency(pod))

    def _decide(self, problem: Problem) -> Decision | None:
        began = self._now()
        decision = self._allocator.decide(problem, self._delegated)
        self._observer.decided(self._now() - began, placed=decision is not None)
        return decision

    def _write(self, pod: Pod, attempt: _Attempt) -> None:
        cluster, wants, decision = self._cluster, attempt.wants, attempt.decision
        key = (wants.claim.ref.namespace, wants.claim.ref.name)
        claim = cluster.claims[key].claim
        if cluster.finalizer not in claim.finalizers:
            cluster.set_claim(self._writer.add_finalizer(claim), own=True)
            claim = cluster.claims[key].claim
        try:
            obj = self._writer.allocate(
                claim,
                attempt.picks,
                node=decision.node,
                pool=decision.pool,
                config=wants.config(p.request for p in attempt.picks),
            )
        except UnavailableError:
            self._suppose(replace(attempt, wants=replace(wants, claim=claim)))
            raise
        cluster.set_claim(obj, own=True)
        for pick in attempt.picks:
            if pick.profile:
                cluster.markets.observe(pick.profile)
        self._announce(pod, obj, attempt)

    def _suppose(self, attempt: _Attempt) -> None:
        """An allocation may have been written: count it until the claim's next state is known."""
        decision, claim = attempt.decision, attempt.wants.claim
        devices = tuple(
            AllocatedDevice(p.request, self._cluster.driver, decision.pool, p.device)
            for p in attempt.picks
        )
        self._cluster.fleet.hold(claim.ref, Allocation(devices, decision.node))
        self._attempts[claim.ref.uid] = attempt

    def _repeat_attempts(self, pod: Pod) -> None:
        """Write again what may or may not have been written: the same, so that either is right."""
        for key in pod.claim_keys:
            known = self._cluster.claims.get(key)
            attempt = self._attempts.pop(known.claim.ref.uid, None) if known else None
            if known is None or attempt is None:
                continue
            if known.claim.resource_version == attempt.wants.claim.resource_version:
                self._write(pod, attempt)

    def _wait(self, pod: Pod, obstacle: Obstacle, claims: list[Key]) -> None:
        known = [self._cluster.claims[k].obj for k in claims if k in self._cluster.claims]
        self._reporter.waiting(pod, obstacle, known)
        self._waiting.add(pod.key)
        at = self._now() + LOOK_AGAIN_SECONDS
        end = self._exclusions.next_end(pod.uid)
        self._add(pod.key, at=at if end is None else min(at, end))

    def _refuse(self, key: Key, node: str) -> None:
        """Somebody took an allocation back: that node does not suit the pods that wait for it."""
        known = self._cluster.claims.get(key)
        for pod in self._cluster.pods_of(key):
            if pod.pending and not pod.node and known is not None:
                seconds = self._exclusions.refuse(pod.uid, node)
                message = (
                    f"the allocation on node {node} was taken back (kube-scheduler does that when "
                    f"pod {pod} does not fit there): {node} is left out for {seconds:.0f} s"
                )
                obstacle = Obstacle(Reason.TAKEN_BACK, message)
                self._reporter.on_claim(known.obj, obstacle, warning=False)

    # -- failures

    def _guarded(self, work: WorkList[Key], key: Key, act: Callable[[], None]) -> None:
        """Act on a key, and retry with a growing pause what the API server refuses."""
        try:
            act()
        except NotFoundError as error:
            _log.info("gone meanwhile", extra={"key": "/".join(key), "error": str(error)})
        except BindingForbiddenError as error:
            self._refused(key, str(error))
        except (InvalidError, ForbiddenError) as error:
            self._refused(key, f"the API server refuses the write: {error}")
        except ConflictError as error:
            _log.info("changed meanwhile", extra={"key": "/".join(key), "error": str(error)})
        except KubeError as error:
            _log.warning("write failed", extra={"key": "/".join(key), "error": str(error)})
        except NotLeadingError:
            raise
        except Exception:  # noqa: BLE001 - logged; it may be anything
            # One object that we cannot handle must not keep the others from being served.
            _log.exception("failed; trying again later", extra={"key": "/".join(key)})
        else:
            work.succeeded(key)
            return
        pod = self._cluster.pods.get(key)
        work.retry(key, _urgency(pod) if pod is not None and work is self._pods else 0)

    def _refused(self, key: Key, message: str) -> None:
        pod = self._cluster.pods.get(key)
        _log.error("write refused", extra={"key": "/".join(key), "error": message})
        if pod is not None:
            claims = [
                self._cluster.claims[k].obj for k in pod.claim_keys if k in self._cluster.claims
            ]
            self._reporter.waiting(pod, Obstacle(Reason.REFUSED, message), claims)

    def _announce(self, pod: Pod, obj: dict[str, object], attempt: _Attempt) -> None:
        decision = attempt.decision
        for pick in attempt.picks:
            _log.info(
                "allocated",
                extra={
                    "claim": str(pick.claim),
                    "pod": str(pod),
                    "request": pick.request,
                    "node": decision.node,
                    "gpu": pick.gpu,
                    "profile": pick.profile or "gpu",
                    "placement": str(pick.placement) if pick.placement else "whole",
                    "device": pick.device,
                },
            )
        what = ", ".join(
            f"{p.profile} at {p.placement} of {p.gpu}" if p.placement else p.gpu
            for p in attempt.picks
        )
        self._reporter.allocated(pod, obj, f"allocated {what} on node {decision.node}")


def _urgency(pod: Pod) -> tuple[int, str, str, str]:
    """Higher priority first, then older, then by name."""
    return (-pod.priority, pod.created, *pod.key)
