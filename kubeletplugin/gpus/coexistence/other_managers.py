"""Other programs that manage this node's GPUs, recognised by what they write.

Two managers of one GPU give the same slice to two pods, or take it from under one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dra.claims.reasons import NodeReason
from dra.resourceslices.nvidiadra import DEPLOY_LABEL, dra_driver

_CONFIG = "nvidia.com/mig.config"
_STATE = "nvidia.com/mig.config.state"
_DEPLOY = "nvidia.com/gpu.deploy.mig-manager"
_OFF = f"keep mig-manager off this node: set the label {_DEPLOY} to false"
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
    runs_mig_manager: Callable[[], bool] = lambda: False,
) -> Conflict | None:
    """Find another manager of a Node's GPUs (core/v1, as JSON); of several the most dangerous.

    ``summaries`` are those of the ResourceSlices that NVIDIA's DRA driver has for it. With
    ``makes_layouts`` this program does what the label of mig-manager says. ``runs_mig_manager``
    says whether its program runs on the node; it is asked only where labels do not settle it.
    """
    labels = node.get("metadata", {}).get("labels") or {}
    return (
        _mig_manager(labels, makes_layouts=makes_layouts, runs=runs_mig_manager)
        or _dra_driver(node, summaries)
        or _device_plugin(node)
    )


def _mig_manager(
    labels: Mapping[str, str], *, makes_layouts: bool, runs: Callable[[], bool]
) -> Conflict | None:
    """MIG manager, at work while ``nvidia.com/mig.config`` is set and the state is no success.

    That label says nothing where mig-manager is switched off: the GPU operator sets it to
    ``all-disabled`` on each node without it, and a state stays as it was when mig-manager was
    ended in the middle (gpu-operator, nodelabeling_controller.go, updateGPUStateLabels).
    """
    config, state, deploy = (labels.get(key, "") for key in (_CONFIG, _STATE, _DEPLOY))
    waits = bool(config) and state != "success"
    if deploy == "false":
        # Its DaemonSet selects nodes by this label; a pod that ends may still change GPUs.
        if not (waits or makes_layouts) or not runs():
            return None
        problem = (
            f"mig-manager is switched off on this node ({_DEPLOY}=false) and still runs; wait "
            "until its pod is gone, or remove it where the GPU operator did not install it"
        )
        return Conflict(NodeReason.MIG_MANAGER, problem, frozen=True, passing=True)
    if makes_layouts:
        return _second_mig_manager(deploy)
    if not waits:
        return None
    if state == "failed":
        return Conflict(
            NodeReason.MIG_MANAGER,
            f"mig-manager failed to change this node's GPUs ({_CONFIG}={config}, {_STATE}=failed) "
            f"and tries no more; see its log and set {_CONFIG} to a configuration that it can "
            f"make, or {_OFF}",
            frozen=True,
        )
    return Conflict(
        NodeReason.MIG_MANAGER,
        f"mig-manager is changing this node's GPUs ({_CONFIG}={config}, "
        f"{_STATE}={state or 'not set'}); wait for the state success, or {_OFF}",
        frozen=True,
        passing=True,
    )


def _second_mig_manager(deploy: str) -> Conflict | None:
    """MIG manager, where this program makes the layouts: the GPU operator runs it by a label."""
    if not deploy:
        return None
    return Conflict(
        NodeReason.MIG_MANAGER,
        f"mig-manager is to run on this node ({_DEPLOY}={deploy}), where layouts are made by this "
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
