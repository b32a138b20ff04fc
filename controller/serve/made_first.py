"""Slices that are made before they are allocated.

Slices are reserved in the MigNode of their node, which makes them and answers there. A reservation
counts from the decision on, like an allocation. The claim is not written to before the answer, so
that kube-scheduler does not bind its pod, with or without a gate. If a slice cannot be made, its
GPU is left out for a while and the claim is placed elsewhere. Either all claims of a pod are made,
or all its reservations are removed.

This is done if the configuration of a class or claim asks for it, and on nodes where a slice could
not be made lately. It is done only on nodes that announce the capability.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from controller import times
from controller.cluster.records import PodRecord, Reserved
from controller.serve.nudges import preparation
from controller.serve.world import Look, World
from dra.allocator.allocate import over_quota
from dra.allocator.problem import Decision, Pick, Problem
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
from dra.gpu.names import DeviceNameError, MigDevice, parse_device

_log = logging.getLogger(__name__)


def reserve(
    world: World, record: PodRecord, decision: Decision, claims: Iterable[ClaimWants]
) -> Look | None:
    """Reserve the slices decided for a pod; returns None if it is to be allocated at once."""
    wanted = [*claims]
    inventory = world.cluster.inventory(decision.node)
    if inventory is None or MAKES_RESERVATIONS not in inventory.capabilities:
        return None
    is_wished = _is_wished(world, decision, wanted)
    if not is_wished and not world.refusals.remembers(decision.node):
        return None
    made = [_reservation(world, w.claim.ref, decision, inventory) for w in wanted]
    reservations = {r.claim.uid: r for r in made if r is not None}
    if len(reservations) < len(wanted):
        return None
    return _begin(world, record, decision, reservations)


def go_on(world: World, record: PodRecord, problem: Problem) -> Decision | Look | None:
    """Go on with the reservations for a pod; ``problem`` has the claims that it lacks.

    Returns the decision that is to be written now, the time to look again while the node is at
    work, or None if nothing is reserved: then the pod is to be placed.
    """
    claims = {wants.claim.ref.uid for wants in problem.claims}
    if record.reserved is None:
        _take_over(world, record, problem.claims)
    reserved = record.reserved
    if reserved is None:
        return None
    node = reserved.decision.node
    inventory = world.cluster.inventory(node)
    if inventory is None or not inventory.ready or claims != reserved.reservations.keys():
        end(world, record)
        return None
    answers = {a.id: a for a in inventory.answers}
    found = {uid: answers.get(r.id) for uid, r in reserved.reservations.items()}
    states = {answer.state if answer is not None else None for answer in found.values()}
    if states == {AnswerState.MADE}:
        return _made(world, record, reserved)
    if states <= {None, AnswerState.MADE} and world.now() < reserved.until:
        return Look(reserved.until)
    refused = AnswerState.REFUSED in states or world.reservations.is_denied
    if refused and not world.refusals.remembers(node):
        return _made(world, record, reserved)  # the slices are made after the allocation
    if AnswerState.EXPIRED not in states:  # an expired one failed as we came too late
        _fail(world, record, reserved, found)
    end(world, record)
    return None


def end(world: World, record: PodRecord) -> None:
    """Remove the reservations for a pod that needs them no more, or is gone."""
    reserved, record.reserved = record.reserved, None
    if reserved is None:
        return
    node, ids = reserved.decision.node, [r.id for r in reserved.reservations.values()]
    world.reservations.drop(node, ids, at_once=True)
    for ref in reserved.claims:
        world.cluster.end_write(ref)
    world.cluster.make_room(node)


def _is_wished(world: World, decision: Decision, claims: Iterable[ClaimWants]) -> bool:
    config: list[dict[str, Any]] = []
    for wants in claims:
        config += wants.config(p.request for p in decision.of(wants.claim.ref))
    return preparation(config, driver=world.cluster.driver).bind_when == "made"


def _reservation(
    world: World, ref: ClaimRef, decision: Decision, inventory: Inventory
) -> Reservation | None:
    """The reservation for a claim's part of a decision.

    Returns None if the claim has other devices than slices of its own, or if the node has no room
    for another reservation.
    """
    devices = []
    for pick in decision.of(ref):
        gpu = inventory.gpu(pick.gpu)
        if gpu is None or pick.placement is None or pick.share is not None:
            return None
        devices.append(ReservedDevice(pick.device, gpu.uuid, pick.request))
    if not devices or not world.reservations.has_room(decision.node, len(devices)):
        return None
    new_id = world.reservations.new_id()
    return Reservation(new_id, ref, tuple(devices), times.RESERVED_ON_NODE)


def _begin(
    world: World, record: PodRecord, decision: Decision, reservations: Mapping[str, Reservation]
) -> Look | None:
    if world.reservations.is_denied:
        return None
    until = world.now() + times.RESERVED_ANSWER
    record.reserved = Reserved(decision, reservations, until)
    for ref in record.reserved.claims:
        world.cluster.begin_write(ref, decision.allocation(ref, world.cluster.driver))
    world.reservations.add(decision.node, reservations.values())
    devices = ", ".join(p.device for p in decision.picks)
    fields = {"pod": str(record.pod), "node": decision.node, "device": devices}
    _log.info("reserved", extra=fields)
    return Look(until)


def _made(world: World, record: PodRecord, reserved: Reserved) -> Decision:
    """The decision, to be written now; its slices go on counting by the write that follows."""
    record.reserved = None
    ids = [r.id for r in reserved.reservations.values()]
    world.reservations.drop(reserved.decision.node, ids, at_once=False)
    return reserved.decision


def _fail(
    world: World, record: PodRecord, reserved: Reserved, found: Mapping[str, Answer | None]
) -> None:
    """Leave out the GPUs of slices that were not made, and tell their claims why."""
    decision = reserved.decision
    for ref in reserved.claims:
        answer = found[ref.uid]
        if answer is not None and answer.state is AnswerState.MADE:
            continue
        if answer is not None and answer.state is AnswerState.REFUSED:
            # The node did not try, e.g. as its namespace had many made in vain: the GPU is fine.
            world.refusals.refuse(world.cluster.pod_index.template(record.pod), decision.node)
            continue
        for gpu in {pick.gpu for pick in decision.of(ref)}:
            world.refusals.leave_out(decision.node, gpu)
        why = answer.message if answer is not None else "it did not answer in time"
        devices = ", ".join(p.device for p in decision.of(ref))
        message = (
            f"node {decision.node} cannot make {devices}, so that the claim is placed "
            f"elsewhere. The node says: {why}"
        )
        known = world.cluster.claims.get(ref.key)
        if known is not None:
            world.reporter.on_claim(known, Obstacle(Reason.NOT_MADE, message))


# -- what the leader before had reserved


def _take_over(world: World, record: PodRecord, claims: Iterable[ClaimWants]) -> None:
    """Take over the reservations of a former leader if it made them for all ``claims``."""
    found = {c.claim.ref.uid: world.reservations.others(c.claim.ref.uid) for c in claims}
    reservations = {uid: each[1] for uid, each in found.items() if each is not None}
    nodes = {each[0] for each in found.values() if each is not None}
    if not reservations or len(reservations) < len(found) or len(nodes) != 1:
        return
    inventory = world.cluster.inventory(nodes.pop())
    decision = decision_of(reservations.values(), inventory) if inventory is not None else None
    if decision is not None and over_quota(claims, decision, world.cluster.fleet) is None:
        _begin(world, record, decision, reservations)


def decision_of(reservations: Iterable[Reservation], inventory: Inventory) -> Decision | None:
    """The decision behind ``reservations``; None if they do not fit the node's GPUs any more."""
    picks = [_pick(r.claim, d, inventory) for r in reservations for d in r.devices]
    known = tuple(p for p in picks if p is not None)
    return Decision(inventory.node, inventory.pool, known) if len(known) == len(picks) else None


def _pick(claim: ClaimRef, device: ReservedDevice, inventory: Inventory) -> Pick | None:
    try:
        parsed = parse_device(device.device)
    except DeviceNameError:
        return None
    if not isinstance(parsed, MigDevice):
        return None
    gpu = inventory.gpu(parsed.gpu)
    if gpu is None or gpu.geometry is None or gpu.uuid != device.gpu:
        return None
    profile = gpu.geometry.by_id(parsed.profile_id)
    placements = profile.placements if profile is not None else ()
    placement = next((p for p in placements if p.start == parsed.start), None)
    if profile is None or placement is None:
        return None
    return Pick(claim, device.request, gpu.name, device.device, profile.name, placement)
