"""Binding conditions: pods that kube-scheduler binds only once their slices are made.

An allocation may name conditions of its devices (KEP-5007, ``dra.claims.conditions``).
kube-scheduler then reserves the claim for the pod, and waits with the binding until the node says
that the slices are made (``PreBind`` of its plugin DynamicResources, 1.36, whoever allocated). Such
an allocation is written without a reservation, so that from then on ``reservedFor`` says whether
kube-scheduler waits. While it does, nothing is taken from the claim: without an allocation it would
wait on, and with one on another node it would bind the pod to the former.

If the slices cannot be made, the node says so. kube-scheduler ends its reservation within five
seconds, and the claim is given back (``controller.serve.giving_back``). An API server that does not
know the conditions leaves them out: then the pod is bound at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from controller import times
from controller.serve.nudges import preparation
from controller.serve.world import World
from dra.allocator.problem import Decision
from dra.claims.conditions import awaits_slices, is_as_it_should_be
from dra.claims.reader import KnownClaim
from dra.claims.wants import ClaimWants
from dra.common.resources import ObjectKey, at
from dra.gpu.inventory import SETS_CONDITIONS


def waits_for_slices(world: World, decision: Decision, claims: Iterable[ClaimWants]) -> bool:
    """True if kube-scheduler is to bind the pod of ``decision`` only once its slices are made.

    That is so if the configuration of a class or claim asks for it, and on GPUs where a slice could
    not be made lately; and only if the node will say what became of the slices.
    """
    inventory = world.cluster.inventory(decision.node)
    if inventory is None or SETS_CONDITIONS not in inventory.capabilities:
        return False
    if not world.options.eager_creation:  # it finds its claims by their label
        return False
    config: list[dict[str, Any]] = []
    for wants in claims:
        config += wants.config(p.request for p in decision.of(wants.claim.ref))
    if config and preparation(config, driver=world.cluster.driver).bind_when == "made":
        return True
    return world.refusals.remembers(decision.node, (pick.device for pick in decision.picks))


def note_claim_made(world: World, key: ObjectKey) -> None:
    """Forget the failures of GPUs on which slices were made for which kube-scheduler waited."""
    known = world.cluster.claims.get(key)
    if known is None or known.claim.allocation is None or not is_as_it_should_be(known.obj):
        return
    allocation, driver = known.claim.allocation, world.cluster.driver
    if awaits_slices(known.obj, driver=driver):
        devices = (each.device for each in allocation.of_driver(driver))
        world.refusals.prove(allocation.node, devices)


def may_wait_until(world: World, known: KnownClaim) -> float | None:
    """The monotonic time until which kube-scheduler may wait for a claim's slices; None if not."""
    if not known.claim.reserved_for or not awaits_slices(known.obj, driver=world.cluster.driver):
        return None
    written = at(known.obj, "status", "allocation", "allocationTimestamp")
    record = world.cluster.claim_index.record(known.claim.ref)
    if record.awaited is None or record.awaited[0] != written:
        # How old an allocation is, only a clock that nobody sets could tell.
        record.awaited = written, world.now()
    end = record.awaited[1] + times.SCHEDULER_AWAITS
    return end if world.now() < end else None
