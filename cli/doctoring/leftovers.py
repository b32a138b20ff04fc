"""Checks of claims that hold slices without a user, and of slices that no claim holds."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from cli.doctoring.checks import Check, fail, of_gpu, ok, warn
from cli.doctoring.evidence import Evidence
from cli.shell.output import counted, named
from cli.site.drawing import remark
from cli.site.releasing import find_hindrance
from dra.claims.reader import KnownClaim
from dra.gpu.names import finalizer

PATIENCE = timedelta(minutes=2)
"""Time that a claim may take to go, or to get its pod, before it is worth a word."""


def claims(evidence: Evidence) -> Iterator[Check]:
    """No claim is held up in going, and none holds a slice for nobody."""
    facts, found = evidence.facts, False
    ours = finalizer(facts.driver)
    for key, known in sorted(facts.claims.items()):
        name = "/".join(key)
        if known.claim.deleting and ours in known.claim.finalizers:
            if _age(known, "deletionTimestamp", evidence.now) > PATIENCE:
                found = True
                yield fail("claims", f"claim {name} {_why_it_stays(known, evidence)}", _REMOVE)
            continue
        allocation = known.claim.allocation
        if allocation is None or not allocation.of_driver(facts.driver):
            continue
        if facts.site.nodes and facts.site.node(allocation.node) is None:
            found = True
            yield fail(
                "claims",
                f"claim {name} is allocated on {allocation.node}, which has no MigNode",
                "bring the node back, or delete the pod and the claim",
            )
        elif (
            not known.claim.reserved_for
            and not facts.pods_of(key)
            and _age(known, "creationTimestamp", evidence.now) > PATIENCE
        ):
            found = True
            devices = named([d.device for d in allocation.of_driver(facts.driver)])
            yield warn(
                "claims",
                f"claim {name} holds {devices} on {allocation.node}, and no pod refers to it",
                "delete it, or use it",
            )
    if not found:
        yield ok(
            "claims",
            f"{counted(len(facts.claims), 'claim')}, none stuck or with a slice for nobody",
        )


_REMOVE = (
    "see to what holds it; if its node is gone for good, delete the Node; without a controller: "
    "kubectl mig release <name> -n <namespace>"
)


def instances(evidence: Evidence) -> Iterator[Check]:
    """No slice is left behind, lost or unhealthy."""
    troubled = False
    for view in evidence.facts.site.gpus:
        where = f"{view.inventory.node} {view.gpu.name}"
        for slot in view.slots:
            text = remark(slot)
            if not text:
                continue
            troubled = True
            if slot.state == "foreign":
                check = warn("instances", f"{where}: {text}: its room is not given out")
            elif slot.state == "reclaiming":
                check = warn("instances", f"{where}: {text}", "end the process that uses it")
            else:
                check = fail("instances", f"{where}: {text}", "delete the pod that has it")
            node, gpu = view.inventory.node, view.gpu
            yield of_gpu(check, node, gpu.name, gpu.uuid, cause=slot.state)
    if not troubled:
        yield ok("instances", "no slice is foreign, left behind, lost or unhealthy")


def _why_it_stays(known: KnownClaim, evidence: Evidence) -> str:
    site = evidence.facts.site
    nodes = {n["metadata"]["name"] for n in evidence.nodes} or {n.name for n in site.nodes}
    held = find_hindrance(known.claim, site, nodes, driver=evidence.facts.driver)
    why = held.message if held else "the controller has not taken its finalizer away"
    return f"is being deleted; {why}"


def _age(known: KnownClaim, field: str, now: datetime) -> timedelta:
    stamp = known.obj["metadata"].get(field)
    return now - datetime.fromisoformat(stamp) if stamp else timedelta()
