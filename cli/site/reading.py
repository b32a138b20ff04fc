"""Readers of the cluster's objects as values; a missing object is reported with its remedy."""

from __future__ import annotations

from api.errors import ApiError
from cli.shell.exits import CliError, Exit
from cli.shell.session import Session
from cli.site.occupancy import Site, survey
from dra.common.resources import MIG_NODES, RESOURCE_CLAIMS, Obj
from dra.gpu.inventory import Inventory
from dra.gpu.mignode import from_mignode, reservations_of
from dra.kube.errors import ObjectNotFoundError


def mignodes(session: Session) -> list[Obj]:
    """All MigNodes.

    Raises:
        CliError: the CustomResourceDefinition is not installed.
    """
    try:
        return session.api.list(MIG_NODES).items
    except ObjectNotFoundError as error:
        raise CliError(
            Exit.NOT_FOUND,
            f"the cluster does not know {MIG_NODES}: is the driver installed? (kubectl mig doctor)",
        ) from error


def inventories(objects: list[Obj]) -> tuple[list[Inventory], dict[str, str]]:
    """The inventories in MigNode objects, and by node why some could not be read."""
    read: list[Inventory] = []
    unreadable: dict[str, str] = {}
    for obj in objects:
        try:
            read.append(from_mignode(obj))
        except (ApiError, ValueError) as error:
            unreadable[obj["metadata"]["name"]] = str(error)
    return read, unreadable


def reserved(objects: list[Obj]) -> dict[str, str]:
    """Slices that are made for claims before their allocation, by the claim's UID, in words."""
    found: dict[str, str] = {}
    for obj in objects:
        try:
            reservations = reservations_of(obj)
        except ApiError:
            continue
        for each in reservations:
            devices = ", ".join(d.device for d in each.devices)
            found[each.claim.uid] = f"{devices} on node {obj['metadata']['name']}"
    return found


def site(session: Session) -> Site:
    """The nodes with MIG GPUs, and who holds what there."""
    read, unreadable = inventories(mignodes(session))
    claims = session.api.list(RESOURCE_CLAIMS).items
    return survey(read, claims, driver=session.driver, unreadable=unreadable)
