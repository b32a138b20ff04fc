"""Release of claims with our finalizer: the check that nothing holds one any more. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from cli.site.occupancy import Site
from dra.claims.claims import Claim


@dataclass(frozen=True, slots=True)
class Hindrance:
    """Reason why a claim is not released; ``forcible`` where a node says so, maybe long ago."""

    message: str
    forcible: bool = False


def find_hindrance(
    claim: Claim, site: Site, nodes: Collection[str], *, driver: str
) -> Hindrance | None:
    """Hindrance to letting ``claim`` go, or None; ``nodes`` are the names of the Nodes that exist.

    Who has reserved it holds it. Else its node does, as long as the Node exists and has a slice of
    the claim, or cannot tell.
    """
    if claim.reserved_for:
        users = [f"{_SINGULAR.get(c.resource, c.resource)} {c.name}" for c in claim.reserved_for]
        return Hindrance(f"in use by {', '.join(users)}")
    for view, slot in site.instances_of(claim.ref.uid):
        node = view.inventory.node
        if node in nodes:
            why = f"{slot.state}: {slot.message}" if slot.message else slot.state
            return Hindrance(
                f"{node} {view.gpu.name} still has its {slot.where}, {why}", forcible=True
            )
    allocation = claim.allocation
    if allocation is None or not allocation.of_driver(driver) or allocation.node not in nodes:
        return None
    node = allocation.node
    if node in site.unreadable:
        return Hindrance(f"the MigNode of its node {node} cannot be read", forcible=True)
    if site.node(node) is None:
        return Hindrance(f"its node {node} has no MigNode that shows it gone", forcible=True)
    return None


def is_ours_to_deallocate(claim: Claim, *, driver: str) -> bool:
    """True if a released claim would keep an allocation of ours that nobody else takes away.

    One that is being deleted goes with it.
    """
    allocation = claim.allocation
    if allocation is None or claim.deleting or claim.ended_by_control_plane:
        return False
    return bool(allocation.of_driver(driver))


_SINGULAR = {"pods": "pod"}
