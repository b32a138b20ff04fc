"""Draining of nodes: the wanted ``MigNode.spec.drain``, and its write."""

from __future__ import annotations

from collections.abc import Iterable

from cli.shell.exits import CliError, Exit
from cli.shell.session import Session
from dra.common.resources import MIG_NODES
from dra.gpu.inventory import Drain, Inventory

_MANAGER = "kubectl-mig"


def drained(inventory: Inventory) -> list[str]:
    """The GPUs of a node that are out of service."""
    return [g.name for g in inventory.gpus if inventory.is_drained(g.name)]


def merge(inventory: Inventory, gpus: tuple[str, ...], *, reason: str, since: str) -> Drain:
    """The drain of ``inventory`` with ``gpus`` more, or with all where none is named.

    Raises:
        CliError: the node has no such GPU.
    """
    check_gpus(inventory, gpus)
    before = inventory.drain
    if before is None:
        return Drain(gpus, reason, since)
    both = () if not gpus or not before.gpus else tuple(sorted({*before.gpus, *gpus}))
    reason = reason or before.reason
    if (both, reason) == (before.gpus, before.reason):
        return before
    return Drain(both, reason, since)


def remaining(inventory: Inventory, gpus: tuple[str, ...]) -> Drain | None:
    """The drain that is left when ``gpus``, or all where none is named, are back in service."""
    before = inventory.drain
    if before is None or not gpus:
        return None
    left = tuple(g for g in drained(inventory) if g not in gpus)
    return Drain(left, before.reason, before.since) if left else None


def check_gpus(inventory: Inventory, gpus: Iterable[str]) -> None:
    """Raises CliError for a name that no GPU of the node has."""
    known = [g.name for g in inventory.gpus]
    for name in gpus:
        if name not in known:
            raise CliError(
                Exit.NOT_FOUND,
                f"node {inventory.node} has no {name!r}; its GPUs are: {', '.join(known)}",
            )


def write_drain(session: Session, node: str, drain: Drain | None) -> None:
    """Write it, and only it."""
    wanted = None
    if drain is not None:
        wanted = {
            "gpus": [*drain.gpus] or None,
            "reason": drain.reason or None,
            "since": drain.since,
        }
    session.api.patch(MIG_NODES, node, {"spec": {"drain": wanted}}, field_manager=_MANAGER)
