"""``kubectl mig map``: what sits where on every GPU."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from cli.drawing import draw_node, remarks, write_legend, write_list, write_summary
from cli.facts import mignodes, read_site
from cli.kept import kept
from cli.output import Exit, Output
from cli.session import Session
from cli.site import GpuView, NodeView, Site, Slot, survey
from dra.common.resources import MIG_NODES, RESOURCE_CLAIMS
from dra.gpu.shares import ShareOffer

_SETTLE_SECONDS = 0.2
_MOST_DRAWN = 8
"""Number of nodes up to which all are drawn unnamed; more are listed in a line each."""


def run(session: Session, *, node: Sequence[str] = (), watch: bool = False) -> int:
    """Draw the map, once or at every change."""
    if watch:
        _watch(session, node)
    _show(read_site(session), node, session.out)
    return Exit.OK


def _watch(session: Session, wanted: Sequence[str]) -> None:
    """Draw again when a MigNode or a claim has changed, until interrupted."""
    from dra.kube.http import whole  # noqa: PLC0415 - as the next
    from dra.kube.reflector import Reflector  # noqa: PLC0415 - threads, for this option only

    mignodes(session)  # raises at once where the cluster lacks the resource
    changed = threading.Event()
    claim = kept(session.driver)[RESOURCE_CLAIMS]
    nodes, claims = mirrors = [
        Reflector(session.api, resource, on_event=lambda _: changed.set(), keep=keep)
        for resource, keep in ((MIG_NODES, whole), (RESOURCE_CLAIMS, claim))
    ]
    for mirror in mirrors:
        mirror.start()
    shown: Site | None = None
    try:
        while True:
            changed.wait(1.0)
            changed.clear()
            if not all(m.synced for m in mirrors):
                continue
            found = survey(
                nodes.store.list(), claims.store.list(), driver=session.driver, now=session.now()
            )
            if found != shown:
                shown = found
                session.out.clear()
                _show(found, wanted, session.out)
            time.sleep(_SETTLE_SECONDS)
    finally:
        for mirror in mirrors:
            mirror.stop()


def _show(found: Site, wanted: Sequence[str], out: Output) -> None:
    names = [name for name in wanted if name not in found.unreadable]
    nodes = [found.named(name) for name in names] if wanted else [*found.nodes]
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


def _write(nodes: Sequence[NodeView], out: Output, *, named: bool) -> None:
    if len(nodes) > 1:
        write_summary(nodes, out)
        out.line()
    drawn = nodes if named or out.form == "wide" or len(nodes) <= _MOST_DRAWN else []
    if nodes and not drawn:
        write_list(nodes, out)
        out.line()
    for node in drawn:
        draw_node(node, out)
        if out.form == "wide" and any(v.slots or v.ready for v in node.gpus):
            out.table(
                ("GPU", "PLACEMENT", "PROFILE", "STATE", "NAMESPACE", "POD", "CLAIM", "MIG UUID"),
                [_row(v, s) for v in node.gpus for s in (*v.slots, *v.ready)],
                indent="  ",
            )
        out.line()
    for text in remarks(nodes):
        out.paragraph("", out.odd("! "), text)
    write_legend(drawn, out)
    if nodes and not drawn:
        out.line(f"kubectl mig map {nodes[0].name} draws a node, -o wide all of them")


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
        "silence": node.silence,
        "allocator": inventory.allocator.value,
        "driverVersion": inventory.driver_version,
        "mode": inventory.mode,
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
        "slots": [s.as_json for s in view.slots],
        "sharing": _offer(gpu.sharing),
        "sliceSharing": _offer(gpu.slice_sharing),
        "layout": gpu.layout.name if gpu.layout else "",
        "ready": [s.as_json for s in view.ready],
    }


def _offer(offer: ShareOffer | None) -> dict[str, Any] | None:
    return {"shares": offer.shares, "limitsEnforcedBy": offer.enforcer} if offer else None
