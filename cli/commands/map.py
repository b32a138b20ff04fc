"""``kubectl mig map``: what sits where on every GPU."""

from __future__ import annotations

import argparse
import threading
from dataclasses import asdict
from typing import Any

from cli.shell.exits import CliError, Exit
from cli.shell.output import Output
from cli.shell.session import Session
from cli.site.drawing import draw_node, legend, remarks
from cli.site.fleet import list_nodes, summarise
from cli.site.occupancy import GpuView, NodeView, Site, Slot, survey
from cli.site.reading import inventories, mignodes, site
from cli.site.sharing import sharing_json
from dra.gpu.shares import Share, ShareOffer

_SETTLE_SECONDS = 0.2
_MOST_DRAWN = 8
"""Nodes that are drawn without being named; of more there is a line each."""


def run(session: Session, arguments: argparse.Namespace) -> int:
    """Draw the map, once or at every change."""
    if arguments.watch:
        return _watch(session, arguments.node)
    _show(site(session), arguments.node, session.out)
    return Exit.OK


def _show(found: Site, wanted: list[str], out: Output) -> None:
    nodes = _chosen(found, wanted)
    if out.is_json:
        content: dict[str, Any] = {"nodes": [_node_json(n) for n in nodes]}
        if found.unreadable:
            content["unreadable"] = dict(found.unreadable)
        out.json("PlacementMap", content)
        return
    _write(nodes, out, named=bool(wanted))
    for name, problem in found.unreadable.items():
        out.line(out.bad(f"MigNode {name} cannot be read: {problem}"))
    if not nodes and not found.unreadable:
        out.line("no node has MIG GPUs that this driver manages (kubectl mig doctor says more)")
    out.flush()


def _write(nodes: list[NodeView], out: Output, *, named: bool) -> None:
    if len(nodes) > 1:
        summarise(nodes, out)
        out.line()
    drawn = nodes if named or out.form == "wide" or len(nodes) <= _MOST_DRAWN else []
    if nodes and not drawn:
        list_nodes(nodes, out)
        out.line()
    for node in drawn:
        _draw(node, out)
        out.line()
    for text in remarks(nodes):
        out.paragraph("", out.odd("! "), text)
    for line in legend(drawn, out):
        out.line(line)
    if nodes and not drawn:
        out.line(f"kubectl mig map {nodes[0].name} draws a node, -o wide all of them")


def _draw(node: NodeView, out: Output) -> None:
    for line in draw_node(node, out):
        out.line(line)
    if out.form == "wide" and any(v.slots or v.ready for v in node.gpus):
        out.table(
            ("GPU", "PLACEMENT", "PROFILE", "STATE", "NAMESPACE", "POD", "CLAIM", "MIG UUID"),
            [_row(v, s) for v in node.gpus for s in (*v.slots, *v.ready)],
            indent="  ",
        )


def _chosen(found: Site, wanted: list[str]) -> list[NodeView]:
    if not wanted:
        return list(found.nodes)
    nodes = []
    for name in wanted:
        node = found.node(name)
        if node is None and name not in found.unreadable:
            have = ", ".join(n.name for n in found.nodes[:10]) or "none"
            raise CliError(Exit.NOT_FOUND, f"there is no MigNode {name!r}; there are: {have}")
        if node is not None:
            nodes.append(node)
    return nodes


def _watch(session: Session, wanted: list[str]) -> int:
    """Draw again when a MigNode or a claim has changed, until interrupted."""
    from dra.common.resources import MIG_NODES, RESOURCE_CLAIMS  # noqa: PLC0415
    from dra.kube.reflector import Reflector  # noqa: PLC0415 - threads, for this option only

    mignodes(session)  # a cluster without the resource is told at once
    changed = threading.Event()
    mirrors = [
        Reflector(session.api, resource, on_event=lambda _: changed.set())
        for resource in (MIG_NODES, RESOURCE_CLAIMS)
    ]
    nodes, claims = mirrors
    for mirror in mirrors:
        mirror.start()
    shown: Site | None = None
    try:
        while True:
            changed.wait(1.0)
            changed.clear()
            if not all(m.synced for m in mirrors):
                continue
            read, unreadable = inventories(nodes.store.list())
            found = survey(read, claims.store.list(), driver=session.driver, unreadable=unreadable)
            if found != shown:
                shown = found
                session.out.clear()
                _show(found, wanted, session.out)
            session.pause(_SETTLE_SECONDS)
    finally:
        for mirror in mirrors:
            mirror.stop()


def _row(view: GpuView, slot: Slot) -> tuple[str, ...]:
    claim = slot.claim
    unplaced = "-" if slot.profile else "whole" if slot.share is None else "share"
    return (
        view.gpu.name,
        str(slot.placement) if slot.placement else unplaced,
        slot.profile or "-",
        slot.state,
        claim.namespace if claim else "-",
        ",".join(slot.pods) or "-",
        claim.name if claim else "-",
        slot.uuid or "-",
    )


def _node_json(node: NodeView) -> dict[str, Any]:
    inventory = node.inventory
    return {
        "name": node.name,
        "ready": inventory.ready,
        "message": inventory.message,
        "allocator": inventory.allocator.value,
        "driverVersion": inventory.driver_version,
        "mode": asdict(inventory.mode) if inventory.mode else None,
        "gpus": [_gpu_json(v) for v in node.gpus],
    }


def _gpu_json(view: GpuView) -> dict[str, Any]:
    gpu, largest = view.gpu, view.largest
    geometry = gpu.geometry
    return {
        "name": gpu.name,
        "uuid": gpu.uuid,
        "productName": gpu.product_name,
        "migEnabled": gpu.mig_enabled,
        "reason": gpu.reason,
        "blocked": view.blocked,
        "memoryMiB": gpu.memory_mib,
        "freeMemoryMiB": view.free_mib,
        "memorySlices": geometry.memory_slices if geometry else 0,
        "largestPlaceable": largest.name if largest else "",
        "placeable": geometry.placeable(view.usage) if geometry and view.open else {},
        "slots": [slot_json(s) for s in view.slots],
        "sharing": _offer_json(gpu.sharing),
        "sliceSharing": _offer_json(gpu.slice_sharing),
        "layout": gpu.layout.name if gpu.layout else "",
        "ready": [slot_json(s) for s in view.ready],
    }


def slot_json(slot: Slot) -> dict[str, Any]:
    """A slot as every command prints it; ``placement`` is null for a whole GPU."""
    placement, claim = slot.placement, slot.claim
    return {
        "placement": {"start": placement.start, "size": placement.size} if placement else None,
        "profile": slot.profile,
        "state": slot.state,
        "claim": {"namespace": claim.namespace, "name": claim.name, "uid": claim.uid}
        if claim
        else None,
        "pods": list(slot.pods),
        "migUUID": slot.uuid,
        "message": slot.message,
        "unhealthy": slot.unhealthy,
        **_share(slot.share),
        **sharing_json(slot.sharing),
    }


def _offer_json(offer: ShareOffer | None) -> dict[str, Any] | None:
    if offer is None:
        return None
    return {"shares": offer.shares, "limitsEnforcedBy": offer.enforcer}


def _share(share: Share | None) -> dict[str, Any]:
    if share is None:
        return {}
    return {"share": {"memoryMiB": share.memory_mib, "cores": share.cores}}
