"""Writes of decisions, in this order: finalizers, allocations, the pod's gate, labels.

A write without an answer may have succeeded. Its allocation counts until the claim's next state is
known, and the same allocation is written again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from controller.cluster.records import AllocationWrite, PodRecord
from controller.serve.world import Act, World, Write
from controller.write.claims import ClaimWriter
from controller.write.in_flight import WriteAnswer
from dra.allocator.problem import Decision
from dra.claims.allocation import node_label
from dra.claims.claims import Claim, read_claim
from dra.claims.nearmisses import find_near_miss
from dra.claims.reasons import Obstacle, Reason
from dra.claims.wants import ClaimWants
from dra.common.resources import Obj, ObjectKey, at
from dra.kube.errors import ConflictError, KubeError, UnavailableError
from dra.pods.pods import Pod

_log = logging.getLogger(__name__)

Done = Callable[[Exception | None], None]
"""Function to call when all requests were answered, with the error or None."""


def allocate(  # noqa: PLR0913 - the decision, and what comes after it
    world: World,
    pod: Pod,
    decision: Decision,
    claims: Sequence[ClaimWants],
    done: Done,
    *,
    lifts_gate: bool = True,
    awaits_slices: bool = False,
) -> Write:
    """The write of ``decision``, which has all that ``pod`` lacks, and of its gate if wanted.

    ``awaits_slices``: the pod is to be bound once its slices are made (``serve.binding``).
    """
    lifting = lifts_gate and is_gated(world, pod)
    writes = [AllocationWrite(w, decision, awaits_slices=awaits_slices) for w in claims]
    return _write(world, pod, writes, done, lifting=lifting)


def unwritten(world: World, pod: Pod, decision: Decision) -> dict[str, tuple[Pod, Decision]]:
    """Part of a decision that does not count, as its write failed; by pod, unless that is gone."""
    fleet, known = world.cluster.fleet, world.cluster.pods.get(pod.key)
    picks = tuple(p for p in decision.picks if not fleet.counts(p.claim.uid))
    if known is None or known.uid != pod.uid or not picks:
        return {}
    return {pod.uid: (pod, decision._replace(picks=picks))}


def repeat_uncertain_writes(world: World, record: PodRecord) -> Iterator[Act]:
    """Repeat the pod's writes that had no answer and may have succeeded."""
    found = []
    for known in world.claims_of(record.pod):
        claim = world.cluster.claim_index.records.get(known.claim.ref.uid)
        if claim is not None and claim.uncertain is not None:
            found.append(claim.uncertain)
            claim.uncertain = None
    if found:
        pod = record.pod
        yield _write(
            world, pod, found, lambda error: world.pod_answered(pod.key, error), lifting=False
        )


def lift_gate(world: World, pod: Pod) -> Write:
    """The write that removes our scheduling gate from ``pod``, which has all it wants."""
    return _write(world, pod, [], lambda error: world.pod_answered(pod.key, error), lifting=True)


def is_gated(world: World, pod: Pod) -> bool:
    """True if our gate is still to be lifted from ``pod``."""
    return (
        world.cluster.finalizer in pod.gates and not world.cluster.pod_index.record(pod).gate_lifted
    )


def note_claim(world: World, key: ObjectKey) -> None:
    """End the uncertain write of a claim that has changed since: its outcome is known."""
    known = world.cluster.claims.get(key)
    record = (
        world.cluster.claim_index.records.get(known.claim.ref.uid) if known is not None else None
    )
    if known is None or record is None or record.uncertain is None:
        return
    if known.claim.resource_version != record.uncertain.wants.claim.resource_version:
        record.uncertain = None
        world.cluster.end_write(record.ref)


def _write(
    world: World, pod: Pod, writes: list[AllocationWrite], done: Done, *, lifting: bool
) -> Write:
    cluster, finalizer = world.cluster, world.cluster.finalizer

    def answered(answer: WriteAnswer) -> None:
        _take(world, pod, writes, answer)
        if lifting and answer.error is None:
            cluster.pod_index.record(pod).gate_lifted = True
            _log.info("gate lifted", extra={"pod": str(pod)})
        done(answer.error)

    if writes:
        world.labels.last_allocation = world.now()
    # These claims have the finalizer, so that no write before the allocation brings the label. A
    # claim with the label of an earlier allocation is left out: that was taken back, and a write
    # while kube-scheduler does so again makes it leave the pod alone for long.
    late = [
        w
        for w in writes
        if finalizer in w.wants.claim.finalizers and not _was_labelled(world, w.wants.claim)
    ]
    labelled = [w for w in late if w.awaits_slices or world.labels.at_once.take(world.now())]
    return Write(
        # While the gate of a pod is being lifted, nothing may be written to its claims.
        tuple(w.wants.claim.ref.key for w in writes) if writes else pod.claim_keys,
        lambda: _requests(
            world.writer, pod, writes, labelled, finalizer=finalizer, lifting=lifting
        ),
        answered,
        tuple(
            (w.wants.claim.ref, w.decision.allocation(w.wants.claim.ref, cluster.driver))
            for w in writes
        ),
    )


def _requests(  # noqa: PLR0913 - what is written
    writer: ClaimWriter,
    pod: Pod,
    writes: Sequence[AllocationWrite],
    labelled: Sequence[AllocationWrite],
    *,
    finalizer: str,
    lifting: bool,
) -> Iterator[Obj]:
    """Make the requests of one decision; yields the claims as stored.

    Called by a thread that writes; nobody changes its arguments. Errors of the requests are raised.
    """
    last: dict[str, Obj] = {}
    for write in writes:
        claim, decision = write.wants.claim, write.decision
        if finalizer not in claim.finalizers:
            stored = writer.add_finalizer(claim, node=decision.node)
            yield stored
            claim = read_claim(stored)
        picks = decision.of(claim.ref)
        config = write.wants.config(p.request for p in picks)
        stored = writer.allocate(
            claim, decision, config=config, pod=pod, awaits_slices=write.awaits_slices
        )
        yield stored
        last[claim.ref.uid] = stored
    if lifting:
        writer.requests.lift_gate(pod, finalizer)
    for write in labelled:
        stored = last[write.wants.claim.ref.uid]
        try:
            stored = writer.label(stored, node=write.decision.node)
        except KubeError as error:  # without the label the slice is made a little later
            _log.debug("not labelled: %s", error)
        yield stored


def _take(world: World, pod: Pod, writes: list[AllocationWrite], answer: WriteAnswer) -> None:
    """Take the stored claims; the first one without an allocation is that whose write failed."""
    cluster = world.cluster
    stored: dict[str, Obj] = {obj["metadata"]["uid"]: obj for obj in answer.written}
    for obj in stored.values():  # the last stored state of each claim
        cluster.confirm_claim(obj)
    tried = True
    for write in writes:
        last = stored.get(write.wants.claim.ref.uid)
        claim = (
            write.wants.claim
            if last is None
            else _as_stored(world, write.wants.claim.ref.key, last)
        )
        if last is not None and claim.allocation is not None:
            _tell(world, pod, last, write)
        else:
            # If a proxy repeats a request, the second copy conflicts with the first.
            was_sent = tried and cluster.finalizer in claim.finalizers
            is_open = was_sent and isinstance(answer.error, UnavailableError | ConflictError)
            tried = False
            if write.uncertain or is_open:
                # Even if a repeated write is refused, the first one may have succeeded.
                cluster.claim_index.record(claim.ref).uncertain = replace(
                    write, wants=replace(write.wants, claim=claim), uncertain=True
                )
                note_claim(world, write.wants.claim.ref.key)
                continue
        cluster.end_write(write.wants.claim.ref)


def _tell(world: World, pod: Pod, obj: Obj, write: AllocationWrite) -> None:
    decision = write.decision
    picks = decision.of(write.wants.claim.ref)
    for pick in picks:
        if pick.profile and pick.share is None:
            world.cluster.fleet.demand.observe(pick.profile)
        fields = {
            "claim": str(pick.claim),
            "pod": str(pod),
            "request": pick.request,
            "node": decision.node,
            "gpu": pick.gpu,
            "profile": pick.profile or "gpu",
            "placement": str(pick.placement) if pick.placement else "whole",
            "device": pick.device,
        }
        _log.info("allocated", extra=fields)
    what = ", ".join(
        f"{'a share of ' if p.share else ''}{p.profile} at {p.placement} of {p.gpu}"
        if p.placement
        else p.gpu
        for p in picks
    )
    name = write.wants.claim.ref.name
    message = f"claim {name}: allocated {what} on node {decision.node}"
    if decision.given_up is not None:
        passed_over = "the search for earlier alternatives of the pod's requests was"
        message = f"{message}; {passed_over} {decision.given_up}"
    world.reporter.allocated(pod, obj, message, profiles=[p.profile for p in picks])
    _tell_near_miss(world, write)


def _tell_near_miss(world: World, write: AllocationWrite) -> None:
    """Tell a claim that its selectors miss a smaller profile of its node by little."""
    known = world.cluster.claims.get(write.wants.claim.ref.key)
    picked = {p.request for p in write.decision.of(write.wants.claim.ref) if p.profile}
    chosen = (w for each in write.wants.choices for w in each if w.request in picked)
    gpus = world.cluster.fleet.gpus_of(write.decision.node)
    geometries = dict.fromkeys(gpu.geometry for gpu in gpus if gpu.geometry is not None)
    text = find_near_miss(chosen, geometries)
    if known is not None and text:
        world.reporter.on_claim(known, Obstacle(Reason.NEAR_MISS, text), warning=False)


def _as_stored(world: World, key: ObjectKey, obj: Obj) -> Claim:
    known = world.cluster.claims.get(key)
    if known is not None and known.claim.resource_version == obj["metadata"]["resourceVersion"]:
        return known.claim
    return world.cluster.claim_index.read(obj)


def _was_labelled(world: World, claim: Claim) -> bool:
    known = world.cluster.claims.get(claim.ref.key)
    labels: Obj = at(known.obj, "metadata", "labels", default={}) if known is not None else {}
    return node_label(world.cluster.driver) in labels
