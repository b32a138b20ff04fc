"""Other programs that manage this node's GPUs, recognised by what they write.

Two managers of one GPU give the same slice to two pods, or take it from under one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dra.claims.reasons import NodeReason
from dra.resourceslices.nvidiadra import DEPLOY_LABEL, dra_driver

_CONFIG = "nvidia.com/mig.config"
_STATE = "nvidia.com/mig.config.state"
_DEPLOY = "nvidia.com/gpu.deploy.mig-manager"
_WHOLE = "nvidia.com/gpu"
_SLICES = "nvidia.com/mig-"


@dataclass(frozen=True, slots=True)
class Conflict:
    """Reason for which no GPU of the node is offered.

    ``frozen``: nothing may be destroyed either. ``passing``: the conflict ends by itself.
    """

    reason: NodeReason
    problem: str
    frozen: bool = False
    passing: bool = False


def conflict(
    node: Mapping[str, Any],
    summaries: Iterable[Mapping[str, Any]] = (),
    *,
    makes_layouts: bool = False,
) -> Conflict | None:
    """Find another manager of a Node's GPUs (core/v1, as JSON); of several the most dangerous.

    ``summaries`` are those of the ResourceSlices that NVIDIA's DRA driver has for it. With
    ``makes_layouts`` this program does what the label of mig-manager says.
    """
    mig_manager = _second_mig_manager(node) if makes_layouts else _mig_manager(node)
    return mig_manager or _dra_driver(node, summaries) or _device_plugin(node)


def _mig_manager(node: Mapping[str, Any]) -> Conflict | None:
    """MIG manager, at work while ``nvidia.com/mig.config`` is set and the state is no success."""
    labels = node.get("metadata", {}).get("labels") or {}
    state = labels.get(_STATE, "")
    if not labels.get(_CONFIG) or state == "success":
        return None
    if state == "failed":
        return Conflict(
            NodeReason.MIG_MANAGER,
            f"mig-manager failed to change this node's GPUs ({_CONFIG}={labels[_CONFIG]}, "
            f"{_STATE}=failed) and tries no more; see its log and set {_CONFIG} to a configuration "
            f"that it can make, or remove the label {_CONFIG} and mig-manager from this node",
            frozen=True,
        )
    return Conflict(
        NodeReason.MIG_MANAGER,
        f"mig-manager is changing this node's GPUs ({_CONFIG}={labels[_CONFIG]}, "
        f"{_STATE}={state or 'not set'}); wait for the state success, or remove the label "
        f"{_CONFIG} and mig-manager from this node",
        frozen=True,
        passing=True,
    )


def _second_mig_manager(node: Mapping[str, Any]) -> Conflict | None:
    """MIG manager, where this program makes the layouts: the GPU operator runs it by a label."""
    labels = node.get("metadata", {}).get("labels") or {}
    value = labels.get(_DEPLOY, "")
    if value in {"", "false"}:
        return None
    return Conflict(
        NodeReason.MIG_MANAGER,
        f"mig-manager is to run on this node ({_DEPLOY}={value}), where layouts are made by this "
        f"plugin; set the label {_DEPLOY} to false, or take the class of the node away",
        frozen=True,
    )


_DESTROYS = (
    "whenever it starts with DynamicMIG, it destroys every MIG device that it does not know and "
    "turns MIG mode off where none is left"
)
_GIVES_OUT = "it gives out GPUs, and the MIG devices that it finds when it starts, ours among them"


def _dra_driver(node: Mapping[str, Any], summaries: Iterable[Mapping[str, Any]]) -> Conflict | None:
    """Conflict with NVIDIA's DRA driver.

    GPUs are frozen where that driver makes MIG devices, as any of those here may be its own.
    """
    found = dra_driver(node, summaries)
    if found is None:
        return None
    return Conflict(
        NodeReason.NVIDIA_DRA,
        f"NVIDIA's DRA driver manages this node's GPUs too ({found.sign}): "
        f"{_DESTROYS if found.makes_devices else _GIVES_OUT}; keep it off this node (label "
        f"{DEPLOY_LABEL}=false where the GPU operator installs it, the node affinity of its chart "
        "otherwise), or pass --ignore-other-managers if it serves other GPUs only",
        frozen=found.makes_devices,
    )


def _device_plugin(node: Mapping[str, Any]) -> Conflict | None:
    """Conflict with a device plugin, told by ``status.allocatable``."""
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    given = sorted(
        f"{name}: {count}"
        for name, count in allocatable.items()
        if (name == _WHOLE or name.startswith(_SLICES)) and str(count) != "0"
    )
    if not given:
        return None
    return Conflict(
        NodeReason.DEVICE_PLUGIN,
        f"a device plugin gives out this node's GPUs too ({', '.join(given)}); "
        "keep it off this node, or pass --ignore-other-managers if it serves other GPUs",
    )
