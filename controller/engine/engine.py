"""Engine that decides and acts: one pod or claim at a time, on the state in the cluster index.

No threads, no waiting: the loop around it feeds changes in and calls it. What is written goes to
an outbox, and its answer comes back with the changes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from controller.cluster.cluster import Cluster
from controller.cluster.effects import Effects
from controller.engine.evaluations import TOLD_SECONDS, ClaimSelectors, Evaluations
from controller.engine.placing import Placing
from controller.engine.pod_problem import (
    Satisfied,
    examine,
    find_hindrance,
    find_other_claim,
    without_nodes,
)
from controller.engine.retries import Retries
from controller.lifecycle.allocation_writes import AllocationWrites
from controller.lifecycle.claimwrites import ClaimWrites
from controller.lifecycle.classsync import ClassSync
from controller.lifecycle.cleanup import Ender
from controller.lifecycle.failed_prepare import FailedPrepares
from controller.lifecycle.giving_up import GivingUp
from controller.lifecycle.hindered import Hindered
from controller.lifecycle.lost_nodes import LostNodes
from controller.lifecycle.partial_allocations import PartialAllocations
from controller.queue.exclusions import Exclusions
from controller.queue.fairness import WaitingLine
from controller.queue.pod_queue import PodQueue
from controller.queue.worklist import WorkList
from controller.reporting.observer import ControllerObserver
from controller.reporting.report import Reporter
from controller.writing.in_flight import InFlight
from controller.writing.outbox import Outbox
from controller.writing.writer import Writer
from dra.allocator.allocate import Allocator
from dra.allocator.problem import Problem
from dra.cel.kinds import UnansweredError
from dra.claims.reading import Fault
from dra.claims.reasons import Obstacle, Reason
from dra.claims.wants import Reader
from dra.common.resources import ObjectKey
from dra.pods.pods import Pod

LOOK_AGAIN_SECONDS = 60.0
"""Pause after which a waiting pod is looked at although nothing happened."""


class Engine:
    """The controller's logic. Owned by one thread; ``now`` gives monotonic seconds.

    ``wake`` is called, by any thread, when ``absorb`` has an answer to take. With
    ``finalizer_at_creation`` the API server puts our finalizer on claims, and it stays there.
    ``evaluations`` are for a cluster whose kinds have no evaluator of their own.
    """

    def __init__(  # noqa: PLR0913 - its collaborators
        self,
        cluster: Cluster,
        reader: Reader,
        *,
        writer: Writer,
        outbox: Outbox,
        reporter: Reporter,
        gate: str,
        now: Callable[[], float],
        observer: ControllerObserver | None = None,
        wake: Callable[[], None] = lambda: None,
        finalizer_at_creation: bool = False,
        evaluations: Evaluations | None = None,
    ) -> None:
        self._cluster = cluster
        self._reader = reader
        self._reporter = reporter
        self._gate = gate
        self._now = now
        self._in_flight = InFlight(outbox, wake)
        self._allocations = AllocationWrites(cluster, writer, reporter, self._in_flight, gate=gate)
        writes = ClaimWrites(cluster, self._in_flight, self._settle_claim)
        self._allocator = allocator = Allocator(cluster.fleet, cluster.hosts)
        self._ender = Ender(
            cluster, reader, writer, writes=writes, at_creation=finalizer_at_creation, now=now
        )
        self._exclusions = Exclusions(now)
        self._failed_prepares = FailedPrepares(
            cluster, writer, reporter, writes=writes, exclusions=self._exclusions
        )
        giving_up = GivingUp(cluster, writer, reporter, writes=writes)
        self._lost_nodes = LostNodes(cluster, giving_up, now=now)
        self._hindered = Hindered(cluster, giving_up, self._find_hindrance, now=now)
        self._line = WaitingLine(cluster, allocator, reporter, now=now)
        self._placing = Placing(
            cluster,
            allocator,
            line=self._line,
            partial_allocations=PartialAllocations(
                cluster, reader, writer, writes=writes, allocator=allocator
            ),
            exclusions=self._exclusions,
            observer=observer or ControllerObserver(),
            now=now,
        )
        self._decisions = self._placing.decisions
        self._pods = PodQueue(now)
        self._claims: WorkList[ObjectKey] = WorkList(now)
        self._retries = Retries(
            cluster,
            reporter,
            line=self._line,
            pods=self._pods.changed,
            claims=self._claims,
        )
        self._evaluations = evaluations
        self._pods_held_up: set[ObjectKey] = set()
        self._claims_held_up: set[ObjectKey] = set()
        self._classes = ClassSync(cluster, writer, reporter, now)

    def absorb(self) -> None:
        """Turn answers and the effects of changes into work.

        Raises:
            NotLeadingError: nothing may be written any more.
        """
        if self._in_flight.take_answers():
            self._go_on()
        for key in self._evaluations.take_answers() if self._evaluations else ():
            self._add(key)
        for pod in self._line.expire():
            self._add(pod.key)
        effects = self._cluster.take_effects()
        for taken in effects.taken_back:
            self._refuse(taken.claim, taken.node)
        for node in effects.nodes:
            self._exclusions.ease(node)
        for uid in effects.gone_pods:
            self._exclusions.forget(uid)
            self._allocations.forget_pod(uid)
            self._lost_nodes.forget(uid)
            self._hindered.forget(uid)
            self._reporter.forget(pod_uid=uid, gone=True)
            self._line.leaves(uid)
        self._claims_changed(effects)
        for key in effects.pods:
            self._add(key)
        if effects.classes:
            self._allocator.delegated = frozenset(
                c.extended_resource for c in self._cluster.classes.values() if c.extended_resource
            )
            self._classes.request()
        anywhere = effects.room_anywhere or effects.classes
        room = effects.room & self._cluster.fleet.nodes.keys()
        if room or anywhere:
            self._line.note_room(room)
            self._placing.make_room(room, anywhere=anywhere)
            self._pods.room_made()

    def _claims_changed(self, effects: Effects) -> None:
        for uid in effects.gone_claims:
            self._reporter.forget(claim_uid=uid)
            self._allocations.forget_claim(uid)
            self._line.forget_claim(uid)
        for key in effects.claims:
            self._allocations.notice(key)
            self._claims.add(key, 0)

    def work(self) -> bool:
        """Do one piece of work; False when nothing is due, or answers are to be waited for.

        Raises:
            NotLeadingError: nothing may be written any more.
        """
        if self._classes.sync_if_due() or self._reporter.write_if_due():
            return True
        if self._in_flight.full:
            return False
        claim = self._claims.pop()
        if claim is not None:
            self._guarded(claim, self._end, self._retries.retry_claim)
            return True
        return self._go_on_deciding(idle=False) or self._look() or self._go_on_deciding(idle=True)

    def _look(self) -> bool:
        """Look at the next pod; False when none is due."""
        look = self._pods.pop()
        if look is None:
            return False
        self._guarded(look.key, self._serve, self._retries.retry_pod)
        pod = self._cluster.pods.get(look.key)
        if self._decisions.is_ongoing(look.key):
            return True  # those alike wait for what it comes to
        if pod is None or not self._pods.waits(look.key) or self._line.is_held_for(pod.uid):
            look.go_on()
        return True

    def _go_on_deciding(self, *, idle: bool) -> bool:
        """Make a part of a decision that takes long; False when it is not the turn of one."""
        key = self._decisions.next_pod(idle=idle)
        if key is None:
            return False
        self._guarded(key, self._serve, self._retries.retry_pod)
        self._decisions.settle(key)
        if not self._decisions.is_ongoing(key):
            self._pods.room_made()  # for those alike, and for what was freed while it was decided
        return True

    def next_due(self) -> float | None:
        """The monotonic time of the next piece of work, None when only an answer brings any."""
        times = [self._classes.due, self._reporter.due, self._line.due]
        times += [self._evaluations.due] if self._evaluations else []
        if not self._in_flight.full:
            times += [self._claims.next_due(), self._pods.next_due()]
            times += [self._now()] if self._decisions.are_ongoing else []
        return min((t for t in times if t is not None), default=None)

    def _end(self, key: ObjectKey) -> bool:
        """See whether a claim has ended; True when a write is under way."""
        if self._in_flight.is_about([key]):
            self._claims_held_up.add(key)
        elif not self._failed_prepares.look_at(key):
            again = self._ender.look_at(key)
            if again is not None:
                self._claims.add(key, 0, at=again)
        return self._in_flight.is_about([key])

    # -- pods

    def _add(self, key: ObjectKey, *, at: float | None = None) -> None:
        pod = self._cluster.pods.get(key)
        if pod is not None and pod.claims:
            self._pods.add(pod, at=at)
        else:
            self._pods.leave(key)

    def _serve(self, key: ObjectKey) -> bool:
        """Do what is to be done for a pod; True when a write is under way."""
        pod = self._cluster.pods.get(key)
        self._pods.leave(key)
        if pod is not None and pod.node:
            self._exclusions.bound(pod.template, pod.node)
        if pod is None or not pod.pending or any(g != self._gate for g in pod.gates):
            # Whoever holds another gate may still change where the pod can go.
            if pod is not None:
                self._reporter.left(pod)
                self._line.leaves(pod.uid)
            return False
        if self._in_flight.is_about(pod.claim_keys):
            self._pods_held_up.add(key)
        elif not (
            self._allocations.repeat(pod, lambda error: self._settle_pod(key, error))
            or any(self._failed_prepares.look_at(k) for k in pod.claim_keys)
        ):
            if (again := self._lost_nodes.look_at(pod)) is not None:
                self._add(key, at=again)
            if not self._in_flight.is_about(pod.claim_keys):
                try:
                    self._examine(pod)
                except UnansweredError as error:
                    self._ask(pod, error)
        return self._in_flight.is_about(pod.claim_keys)

    def _ask(self, pod: Pod, error: UnansweredError) -> None:
        """Have evaluated what a decision for ``pod`` needs; it is made once all is answered."""
        if self._evaluations is None:
            raise error
        claims = self._cluster.claims
        known = (claims[key] for key in pod.claim_keys if key in claims)
        asked = (
            ClaimSelectors(k.claim.ref, self._reader.expressions(k.claim), k.claim.views)
            for k in known
        )
        obstacle = self._evaluations.ask(pod, asked, error.question)
        if obstacle is None:
            self._add(pod.key, at=self._now() + TOLD_SECONDS)
        else:
            self._line.leaves(pod.uid)
            self._wait(pod, obstacle, [*pod.claim_keys])

    def _examine(self, pod: Pod) -> None:
        found = examine(pod, self._cluster, self._reader)
        hindrance = find_hindrance(pod, found, self._cluster, self._reader)
        if (again := self._hindered.look_at(pod, hindrance)) is not None:
            self._add(pod.key, at=again)
        if self._in_flight.is_about(pod.claim_keys):
            return
        if not isinstance(found, Problem):
            self._line.leaves(pod.uid)
        if isinstance(found, Satisfied):
            self._reporter.served(pod)
            if found.ours and self._allocations.is_gated(pod):
                self._allocations.lift_gate(pod, lambda error: self._settle_pod(pod.key, error))
        elif isinstance(found, Fault):
            self._wait(pod, found.obstacle, [(found.claim.namespace, found.claim.name)])
        elif isinstance(found, Problem) and not self._rests(pod, found):
            excluded = self._exclusions.excluded(pod.template)
            excluded.pop(pod.nominated, None)  # kube-scheduler makes room there
            self._allocate(pod, without_nodes(found, excluded))

    def _find_hindrance(self, pod: Pod) -> Obstacle | None:
        found = examine(pod, self._cluster, self._reader)
        return find_hindrance(pod, found, self._cluster, self._reader)

    def _rests(self, pod: Pod, problem: Problem) -> bool:
        """Have ``pod`` wait if what it had was of no use to it; True when it does."""
        end = self._hindered.rests_until(pod.uid)
        other = find_other_claim(pod, self._cluster, self._reader) if end is not None else None
        if other is None:
            return False
        self._line.leaves(pod.uid)
        self._wait(pod, other, [(w.claim.ref.namespace, w.claim.ref.name) for w in problem.claims])
        self._add(pod.key, at=end)
        return True

    def _allocate(self, pod: Pod, problem: Problem) -> None:
        found = self._placing.place(pod, problem)
        if isinstance(found, Obstacle):
            refs = [c.claim.ref for c in problem.claims]
            group = self._placing.group_of(pod, problem)
            self._wait(pod, found, [(r.namespace, r.name) for r in refs], group=group)
        elif found is not None:

            def done(error: Exception | None) -> None:
                if error is None:
                    self._line.served(pod)
                self._settle_pod(pod.key, error)

            self._allocations.make(pod, found, problem.claims, done)

    def _wait(
        self,
        pod: Pod,
        obstacle: Obstacle,
        claims: list[ObjectKey],
        *,
        group: Hashable | None = None,
    ) -> None:
        known = [self._cluster.claims[k].obj for k in claims if k in self._cluster.claims]
        fleet = self._cluster.fleet
        if fleet.nodes or not fleet.schedulers or pod.gates:  # else kube-scheduler says why
            self._reporter.waiting(pod, obstacle, known)
        at = self._now() + LOOK_AGAIN_SECONDS
        end = self._exclusions.next_end(pod.template)
        self._pods.wait(pod, group, at=at if end is None else min(at, end))

    def _refuse(self, key: ObjectKey, node: str) -> None:
        """Somebody took an allocation back: that node does not suit the pods that wait for it."""
        known = self._cluster.claims.get(key)
        for pod in self._cluster.pods_of(key):
            if pod.pending and not pod.node and known is not None:
                seconds = self._exclusions.refuse(pod.template, node)
                message = (
                    f"the allocation on node {node} was taken back (kube-scheduler does that when "
                    f"pod {pod} does not fit there): {node} is left out for {seconds:.0f} s"
                )
                obstacle = Obstacle(Reason.TAKEN_BACK, message)
                self._reporter.on_claim(known.obj, obstacle, warning=False)

    # -- failures

    def _guarded(
        self,
        key: ObjectKey,
        act: Callable[[ObjectKey], bool],
        settle: Callable[[ObjectKey, Exception | None], object],
    ) -> None:
        """Act on a key; if that begins a write, its answer tells whether it succeeded."""
        try:
            if not act(key):
                settle(key, None)
        except Exception as error:  # noqa: BLE001 - it may be anything
            # One object that we cannot handle must not keep the others from being served.
            settle(key, error)

    def _settle_pod(self, key: ObjectKey, error: Exception | None) -> None:
        """A pod's write was answered; changes that came meanwhile are looked at next."""
        if error is not None:
            self._pods_held_up.discard(key)  # it is retried, after a pause
        self._retries.retry_pod(key, error)

    def _settle_claim(self, key: ObjectKey, error: Exception | None) -> None:
        """A write to a claim was answered; its pods may wait for that."""
        if error is not None:
            self._claims_held_up.discard(key)
        pause = self._retries.retry_claim(key, error)
        for pod in self._cluster.pods_of(key) if error is not None else ():
            self._add(pod.key, at=self._now() + pause)

    def _go_on(self) -> None:
        """Look again at what had to wait for an answer."""
        pods, self._pods_held_up = self._pods_held_up, set()
        claims, self._claims_held_up = self._claims_held_up, set()
        for key in pods:
            self._add(key)
        for key in claims:
            self._claims.add(key, 0)
