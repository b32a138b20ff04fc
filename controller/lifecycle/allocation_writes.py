"""Writes of decisions that are under way, and what their answers say was written.

A write whose answer got lost may have been made: its allocation counts until the claim's next state
is known, and the same is written again, so that either is right.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from controller.cluster.cluster import Cluster
from controller.reporting.report import Reporter
from controller.writing.allocation_requests import AllocationRequests, AllocationWrite
from controller.writing.in_flight import InFlight, WriteAnswer
from controller.writing.writers import Writers
from dra.allocator.problem import Decision
from dra.claims.allocation import node_label
from dra.claims.claims import Claim
from dra.claims.wants import ClaimWants
from dra.common.resources import Obj, ObjectKey, at
from dra.kube.errors import ConflictError, UnavailableError
from dra.kube.events import Allowance
from dra.pods.pods import Pod

_log = logging.getLogger(__name__)

LABELS_AT_ONCE = 8
LABEL_PAUSE_SECONDS = 0.1
"""Pace of the writes that only name the node in a label and follow an allocation at once. While
pods come faster than that, they are written later, by ``claim_labels``."""

Done = Callable[[Exception | None], None]
"""Called when all was answered: with what went wrong, or None."""


class AllocationWrites:
    """Decision that is being written, or may have been. ``now`` gives monotonic seconds."""

    def __init__(  # noqa: PLR0913 - its collaborators
        self,
        cluster: Cluster,
        writers: Writers,
        reporter: Reporter,
        in_flight: InFlight,
        *,
        gate: str,
        now: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._unanswered = writers.claims.unanswered
        self._now = now
        self._labels = Allowance(burst=LABELS_AT_ONCE, refill_seconds=LABEL_PAUSE_SECONDS)
        self._reporter = reporter
        self._in_flight = in_flight
        self._gate = gate
        self._requests = AllocationRequests(writers, finalizer=cluster.finalizer, gate=gate)
        self.last = float("-inf")
        """The monotonic time at which the last allocation was begun to be written."""
        self._unknown: dict[str, AllocationWrite] = {}
        self._lifted: set[str] = set()

    def make(
        self,
        pod: Pod,
        decision: Decision,
        claims: tuple[ClaimWants, ...],
        done: Done,
        *,
        lifts: bool = True,
    ) -> None:
        """Write ``decision``, all that ``pod`` lacks, and lift its gate if that is to be done."""
        lifting = lifts and self.is_gated(pod)
        self._send(
            pod, [AllocationWrite(wants, decision) for wants in claims], done, lifting=lifting
        )

    def repeat(self, pod: Pod, done: Done) -> bool:
        """Write again what may have been written for ``pod``; False when there is no such thing."""
        claims = self._cluster.claims
        uids = [claims[key].claim.ref.uid for key in pod.claim_keys if key in claims]
        found = [self._unknown.pop(uid) for uid in uids if uid in self._unknown]
        if found:
            self._send(pod, found, done, lifting=False)
        return bool(found)

    def notice(self, key: ObjectKey) -> None:
        """A claim may have changed: if it is not as it was written to, the outcome is known."""
        known = self._cluster.claims.get(key)
        write = self._unknown.get(known.claim.ref.uid) if known else None
        if known and write and known.claim.resource_version != write.claim.resource_version:
            self.forget_claim(known.claim.ref.uid)

    def forget_claim(self, uid: str) -> None:
        """The claim is gone, or its state is known."""
        self._unanswered.forget(uid)
        write = self._unknown.pop(uid, None)
        if write is not None:
            self._cluster.end_write(write.claim.ref)

    def forget_pod(self, uid: str) -> None:
        """The pod is gone."""
        self._lifted.discard(uid)

    def is_gated(self, pod: Pod) -> bool:
        """True if our gate is still to be lifted from ``pod``."""
        return self._gate in pod.gates and pod.uid not in self._lifted

    def lift_gate(self, pod: Pod, done: Done) -> None:
        """Let the scheduler have ``pod``."""
        self._send(pod, [], done, lifting=True)

    def _send(self, pod: Pod, writes: list[AllocationWrite], done: Done, *, lifting: bool) -> None:
        for write in writes:
            self._cluster.begin_write(write.claim.ref, write.allocation(self._cluster.driver))
            self.last = self._now()

        def answered(answer: WriteAnswer) -> None:
            self._take(pod, writes, answer)
            if lifting and answer.error is None:
                self._lifted.add(pod.uid)
                _log.info("gate lifted", extra={"pod": str(pod)})
            done(answer.error)

        # A pod whose gate is being lifted has all it wants: its claims must not move meanwhile.
        claims = [w.key for w in writes] if writes else pod.claim_keys
        finalizer = self._cluster.finalizer
        # No write brings the label. One that names the node of an earlier allocation waits: that
        # was taken back, and a write while kube-scheduler does so again makes it rest for long.
        late = [
            w for w in writes if finalizer in w.claim.finalizers and not self._was_labelled(w.key)
        ]
        labelled = [w for w in late if self._labels.take("", self._now())]
        self._in_flight.start(
            claims,
            lambda: self._requests.make(pod, writes, labelled, lifting=lifting),
            answered,
        )

    def _was_labelled(self, key: ObjectKey) -> bool:
        known = self._cluster.claims.get(key)
        label = node_label(self._cluster.driver)
        return known is not None and label in at(known.obj, "metadata", "labels", default={})

    def _take(self, pod: Pod, writes: list[AllocationWrite], answer: WriteAnswer) -> None:
        """Account for what was stored; the first claim without an allocation is what failed."""
        stored: dict[str, Obj] = {obj["metadata"]["uid"]: obj for obj in answer.written}
        for obj in stored.values():  # the last state of each is all that there is to know
            self._cluster.confirm_claim(obj)
        tried = True
        for write in writes:
            last = stored.get(write.claim.ref.uid)
            claim = write.claim if last is None else self._as_stored(write.key, last)
            if last is not None and claim.allocation is not None:
                self._written(pod, last, write)
            elif write.uncertain or (
                tried
                and _may_be_written(answer.error)
                and self._cluster.finalizer in claim.finalizers
            ):
                # However the same is refused later: the first one may have been written.
                tried = False
                self._unknown[claim.ref.uid] = replace(
                    write, wants=replace(write.wants, claim=claim), uncertain=True
                )
                self.notice(write.key)
                continue
            else:
                tried = False
            self._cluster.end_write(write.claim.ref)

    def _as_stored(self, key: ObjectKey, obj: Obj) -> Claim:
        known = self._cluster.claims.get(key)
        if known is not None and known.claim.resource_version == obj["metadata"]["resourceVersion"]:
            return known.claim
        return self._cluster.read_claim(obj)

    def _written(self, pod: Pod, obj: Obj, write: AllocationWrite) -> None:
        decision = write.decision
        for pick in write.picks:
            if pick.profile and pick.share is None:
                self._cluster.fleet.demand.observe(pick.profile)
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
            f"{'a share of ' if p.share else ''}{p.profile} at {p.placement} of {p.gpu}"
            if p.placement
            else p.gpu
            for p in write.picks
        )
        message = f"allocated {what} on node {decision.node}"
        if decision.given_up is not None:
            passed_over = "the search for earlier alternatives of the pod's requests was"
            message = f"{message}; {passed_over} {decision.given_up}"
        self._reporter.allocated(pod, obj, message, profiles=[p.profile for p in write.picks])


def _may_be_written(error: Exception | None) -> bool:
    """True if a write that ended with ``error`` may have been made.

    A conflict may be one with itself, where something on the way repeats requests.
    """
    return isinstance(error, UnavailableError | ConflictError)
