"""``kubectl mig map``: what sits where on every GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cli.drawing import draw_node, remarks, write_legend, write_list, write_summary
from cli.facts import read_site
from cli.output import Exit, Output
from cli.session import Session
from cli.site import GpuView, NodeView, Slot

_MOST_DRAWN = 8
"""Number of nodes up to which all are drawn unnamed; more are listed in a line each."""


def run(session: Session, *, node: Sequence[str] = ()) -> int:
    """Draw the map."""
    found, out = read_site(session), session.out
    names = [name for name in node if name not in found.unreadable]
    nodes = [found.named(name) for name in names] if node else [*found.nodes]
    if out.is_json:
        content: dict[str, Any] = {"nodes": [_node_json(n) for n in nodes]}
        if found.unreadable:
            content["unreadable"] = dict(found.unreadable)
        out.json("PlacementMap", content)
        return Exit.OK
    _write(nodes, out, named=bool(node))
    for name, problem in found.unreadable.items():
        out.line(out.bad(f"MigNode {name} cannot be read: {problem}"))
    if not nodes and not found.unreadable:
        out.line("no node has MIG GPUs that this driver manages (kubectl mig doctor says more)")
    return Exit.OK


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
        "sharing": _offer(gpu.shares),
        "sliceSharing": _offer(gpu.slice_shares),
        "layout": gpu.layout.name if gpu.layout else "",
        "ready": [s.as_json for s in view.ready],
    }


def _offer(shares: int) -> dict[str, Any] | None:
    return {"shares": shares} if shares else None
