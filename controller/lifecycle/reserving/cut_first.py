"""Cut first, allocate then: claims that are allocated only once their node has made their slices.

What is reserved counts from the decision on, as an allocation does, and stands in the MigNode of
its node, which makes it and answers. Until then nothing is written to the claim, so that
kube-scheduler binds no pod of it, gate or not. What cannot be made is placed elsewhere: the GPU is
left out for a while. All claims of a pod are made, or none is kept. It is for classes and claims
whose configuration asks for it, and for nodes where a slice could not be made lately; a node that
does not say that it can is not asked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from controller.cluster.cluster import Cluster
from controller.lifecycle.failures.wishes import preparation
from controller.lifecycle.reserving.reservation_writes import ReservationWrites
from controller.lifecycle.reserving.takeover import decision_of
from controller.queue.exclusions import Exclusions
from controller.queue.failed_gpus import FailedGpus
from controller.reporting.report import Reporter
from dra.allocator.problem import Decision, Problem
from dra.claims.reasons import Obstacle, Reason
from dra.claims.wants import ClaimWants
from dra.gpu.inventory import (
    MAKES_RESERVATIONS,
    Answer,
    AnswerState,
    ClaimRef,
    Inventory,
    Reservation,
    ReservedDevice,
)
from dra.pods.pods import Pod

_log = logging.getLogger(__name__)

ANSWER_SECONDS = 30.0
"""Time for a node to make what is reserved, queued behind others on its GPUs."""

NODE_SECONDS = 120
"""Time after which the node gives back by itself what nobody allocates: no leader is at work."""


@dataclass(frozen=True, slots=True)
class _Reserved:
    """Reservations for a pod, by claim UID; the node answers before ``until``."""

    decision: Decision
    claims: tuple[ClaimRef, ...]
    reservations: Mapping[str, Reservation]
    until: float


class CutFirst:
    """Pods whose slices are being made. ``now`` gives monotonic seconds. Not thread-safe."""

    def __init__(  # noqa: PLR0913 - its collaborators
        self,
        cluster: Cluster,
        writes: ReservationWrites,
        failed_gpus: FailedGpus,
        reporter: Reporter,
        *,
        exclusions: Exclusions,
        now: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._writes = writes
        self._failed_gpus = failed_gpus
        self._exclusions = exclusions
        self._reporter = reporter
        self._now = now
        self._reserved: dict[str, _Reserved] = {}

    def begin(self, pod: Pod, decision: Decision, claims: Iterable[ClaimWants]) -> float | None:
        """Reserve what was decided for ``pod``; None if it is to be allocated at once.

        Returns the monotonic time to look again.
        """
        wanted = [*claims]
        inventory = self._cluster.inventory(decision.node)
        if inventory is None or MAKES_RESERVATIONS not in inventory.capabilities:
            return None
        if not (self._is_wished(decision, wanted) or self._failed_gpus.remembers(decision.node)):
            return None
        made = [self._reservation(w.claim.ref, decision, inventory) for w in wanted]
        reservations = {r.claim.uid: r for r in made if r is not None}
        if len(reservations) < len(wanted):
            return None
        return self._reserve(pod, decision, reservations)

    def go_on(self, pod: Pod, problem: Problem) -> Decision | float | None:
        """Outcome of what is reserved for ``pod``, which lacks what is in ``problem``.

        Returns the decision that is to be written now, the monotonic time to look again while the
        node is at work, or None if nothing is reserved: the pod is to be placed.
        """
        claims = tuple(wants.claim.ref for wants in problem.claims)
        if pod.uid not in self._reserved:
            self._take_over(pod, claims)
        reserved = self._reserved.get(pod.uid)
        if reserved is None:
            return None
        inventory = self._cluster.inventory(reserved.decision.node)
        is_same = {c.uid for c in claims} == {c.uid for c in reserved.claims}
        if inventory is None or not inventory.ready or not is_same:
            self.end(pod.uid)
            return None
        answers = {a.id: a for a in inventory.answers}
        found = {uid: answers.get(r.id) for uid, r in reserved.reservations.items()}
        states = {answer.state if answer is not None else None for answer in found.values()}
        if states == {AnswerState.MADE}:
            return self._made(pod, reserved)
        if states <= {None, AnswerState.MADE} and self._now() < reserved.until:
            return reserved.until
        refused = AnswerState.REFUSED in states or self._writes.is_denied
        if refused and not self._failed_gpus.remembers(reserved.decision.node):
            return self._made(pod, reserved)  # made after the allocation, as for others
        if AnswerState.EXPIRED not in states:  # else it was looked at too late
            self._fail(pod, reserved, found)
        self.end(pod.uid)
        return None

    def end(self, pod_uid: str) -> None:
        """Give back what is reserved for a pod; it needs it no more, or is gone."""
        reserved = self._reserved.pop(pod_uid, None)
        if reserved is None:
            return
        node = reserved.decision.node
        self._writes.drop(node, (r.id for r in reserved.reservations.values()), at_once=True)
        for ref in reserved.claims:
            self._cluster.end_write(ref)
        self._cluster.make_room(node)

    def _is_wished(self, decision: Decision, claims: Iterable[ClaimWants]) -> bool:
        config: list[dict[str, Any]] = []
        for wants in claims:
            config += wants.config(p.request for p in decision.of(wants.claim.ref))
        return preparation(config, driver=self._cluster.driver).bind_when == "made"

    def _reservation(
        self, ref: ClaimRef, decision: Decision, inventory: Inventory
    ) -> Reservation | None:
        """The reservation of a claim's part; None of one that is not all slices of its own."""
        devices = []
        for pick in decision.of(ref):
            gpu = inventory.gpu(pick.gpu)
            if gpu is None or pick.placement is None or pick.share is not None:
                return None
            devices.append(ReservedDevice(pick.device, gpu.uuid, pick.request))
        if not devices or not self._writes.has_room(decision.node, len(devices)):
            return None
        return Reservation(self._writes.new_id(), ref, tuple(devices), NODE_SECONDS)

    def _reserve(
        self, pod: Pod, decision: Decision, reservations: Mapping[str, Reservation]
    ) -> float | None:
        if self._writes.is_denied:
            return None
        claims = tuple(r.claim for r in reservations.values())
        for ref in claims:
            self._cluster.begin_write(ref, decision.allocation(ref, self._cluster.driver))
        self._writes.add(decision.node, reservations.values())
        until = self._now() + ANSWER_SECONDS
        self._reserved[pod.uid] = _Reserved(decision, claims, reservations, until)
        devices = ", ".join(p.device for p in decision.picks)
        fields = {"pod": str(pod), "node": decision.node, "device": devices}
        _log.info("reserved", extra=fields)
        return until

    def _take_over(self, pod: Pod, claims: Iterable[ClaimRef]) -> None:
        """Go on with what the leader before reserved for all ``claims`` of ``pod``."""
        found = {ref.uid: self._writes.others(ref.uid) for ref in claims}
        reservations = {uid: each[1] for uid, each in found.items() if each is not None}
        nodes = {each[0] for each in found.values() if each is not None}
        if not reservations or len(reservations) < len(found) or len(nodes) != 1:
            return
        inventory = self._cluster.inventory(nodes.pop())
        decision = decision_of(reservations.values(), inventory) if inventory is not None else None
        if decision is not None:
            self._reserve(pod, decision, reservations)

    def _made(self, pod: Pod, reserved: _Reserved) -> Decision:
        """Have the claims allocated: the books count them on, by the write that begins now."""
        del self._reserved[pod.uid]
        ids = (r.id for r in reserved.reservations.values())
        self._writes.drop(reserved.decision.node, ids, at_once=False)
        return reserved.decision

    def _fail(self, pod: Pod, reserved: _Reserved, found: Mapping[str, Answer | None]) -> None:
        """Leave out the GPUs of what was not made, and say why."""
        decision = reserved.decision
        for ref in reserved.claims:
            answer = found[ref.uid]
            if answer is not None and answer.state is AnswerState.MADE:
                continue
            if answer is not None and answer.state is AnswerState.REFUSED:
                # By what its namespace had made for nothing: that is nothing to the GPU's others.
                self._exclusions.refuse(self._cluster.template_of(pod), decision.node)
                continue
            for gpu in {pick.gpu for pick in decision.of(ref)}:
                self._failed_gpus.leave_out(decision.node, gpu)
            why = answer.message if answer is not None else "it did not answer in time"
            devices = ", ".join(p.device for p in decision.of(ref))
            message = (
                f"node {decision.node} cannot make {devices}, so that the claim is placed "
                f"elsewhere. The node says: {why}"
            )
            known = self._cluster.claims.get((ref.namespace, ref.name))
            if known is not None:
                self._reporter.on_claim(known.obj, Obstacle(Reason.NOT_MADE, message))
