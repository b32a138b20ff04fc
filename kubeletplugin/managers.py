"""Other programs that manage this node's GPUs, recognised by what they write on the Node.

Two managers of one GPU give the same slice to two pods, or take it from under one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dra.reasons import NodeReason

_CONFIG = "nvidia.com/mig.config"
_STATE = "nvidia.com/mig.config.state"
_WHOLE = "nvidia.com/gpu"
_SLICES = "nvidia.com/mig-"


@dataclass(frozen=True, slots=True)
class Conflict:
    """Why no GPU of the node is offered; ``frozen`` if nothing may be destroyed either."""

    reason: NodeReason
    problem: str
    frozen: bool = False


def conflict(node: Mapping[str, Any]) -> Conflict | None:
    """Who else manages the GPUs of a Node (core/v1, as JSON), if anybody does.

    NVIDIA's mig-manager works on a node whose label ``nvidia.com/mig.config`` is set until
    ``nvidia.com/mig.config.state`` is ``success``; its device plugin shows what it gives out in
    ``status.allocatable``.
    """
    labels = node.get("metadata", {}).get("labels") or {}
    state = labels.get(_STATE, "")
    if labels.get(_CONFIG) and state != "success":
        return Conflict(
            NodeReason.MIG_MANAGER,
            f"mig-manager is changing this node's GPUs ({_CONFIG}={labels[_CONFIG]}, "
            f"{_STATE}={state or 'not set'}); wait for the state success, or remove the label "
            f"{_CONFIG} and mig-manager from this node",
            frozen=True,
        )
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    given = sorted(
        f"{name}: {count}"
        for name, count in allocatable.items()
        if (name == _WHOLE or name.startswith(_SLICES)) and str(count) != "0"
    )
    if given:
        return Conflict(
            NodeReason.DEVICE_PLUGIN,
            f"a device plugin gives out this node's GPUs too ({', '.join(given)}); "
            "keep it off this node, or pass --ignore-other-managers if it serves other GPUs",
        )
    return None
