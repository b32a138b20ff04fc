"""Remedies for reasons of GPUs, slices and their use: one each, for all who tell of it.

The plugin's messages, ``kubectl mig explain`` and ``doctor`` take them from here, and
docs/troubleshooting.md repeats them.
"""

from __future__ import annotations

from collections.abc import Mapping

from dra.claims.reasons import NodeReason, Reason
from dra.gpu.inventory import GpuReason

_RESET = (
    "reset the GPU (kubectl mig drain {node} {gpu} --wait, nvidia-smi -r -i {uuid}, "
    "kubectl mig resume {node} {gpu}) or reboot the node"
)
_RESUME = "kubectl mig resume {node} {gpu}, when the work on it is done"
_REMEDIES: Mapping[str, str] = {
    GpuReason.NO_MIG: "use it whole",
    GpuReason.MIG_OFF: "turn it on (nvidia-smi -i {uuid} -mig 1, between kubectl mig drain {node} "
    "{gpu} --wait and kubectl mig resume {node} {gpu}), or use the GPU whole",
    GpuReason.MIG_PENDING: _RESET,
    GpuReason.DRAINED: _RESUME,
    GpuReason.RELEASED: _RESUME,
    GpuReason.PAUSED: "nothing: it ends with the label of the node that asks for it",
    GpuReason.MIG_MANAGER: "wait, or label the node nvidia.com/gpu.deploy.mig-manager=false",
    GpuReason.DEVICE_PLUGIN: "keep it off the node, or pass --ignore-other-managers",
    GpuReason.NVIDIA_DRA: "nvidia.com/gpu.deploy.dra-driver=false, or the node affinity of its "
    "chart",
    GpuReason.TAKEOVER: "what kubectl mig takeover {node} --status names",
    GpuReason.HANDED_BACK: "kubectl mig takeover {node}, if the node is to come back",
    GpuReason.LAYOUT_PENDING: "end the pods that are named, or wait",
    GpuReason.LAYOUT_FAILED: "correct what the message names",
    GpuReason.NOT_READY: "look at the plugin's pod and its log on that node",
    GpuReason.NO_PERMISSION: "run the plugin privileged",
    GpuReason.NVML_ERROR: "read the message and dmesg on the node",
    GpuReason.NVML_HANG: "reboot the node if it stays",
    GpuReason.XID_ERROR: "delete the pods that are named; " + _RESET + " if the message says so",
    GpuReason.RECOVERY_REQUIRED: _RESET,
    GpuReason.RECOVERY_ADVISED: "when it suits, " + _RESET,
    GpuReason.FABRIC_NOT_READY: "start the node's fabric manager, in the driver's version; in "
    "its shared mode activate a partition (fmpm -a)",
    GpuReason.COMPUTE_MODE: "nvidia-smi -i {uuid} -c 0, with MIG mode off",
    GpuReason.VIRTUALIZED: "keep the plugin off the node, or pass the GPU through",
    GpuReason.CONFIDENTIAL: "attest them, then nvidia-smi conf-compute -srs 1",
    GpuReason.GPU_LOST: _RESET,
    GpuReason.SLICE_LOST: "delete the pod if it runs on",
    GpuReason.MPS_DOWN: "what the message says of its pod; then restart the containers that use "
    "the claim",
    GpuReason.CREATION_FAILED: "dmesg on the node, if it goes on; then " + _RESET,
    NodeReason.IN_USE: "end what is named, where nothing is most likely a monitor such as DCGM",
    NodeReason.NOT_REMOVED: "it is tried again; if it does not pass, " + _RESET,
    Reason.NEAR_MISS: "what the message says; or nothing, if the larger slice is wanted",
    Reason.UNSEEN: "delete the pod, and create it anew with containers that name the claim and its "
    "requests (kubectl mig lint checks it offline)",
    NodeReason.FOREIGN: "destroy it by hand if nobody needs it (nvidia-smi mig -dci, then -dgi, "
    "on the node)",
}


def remedy(reason: str, *, node: str = "<node>", gpu: str = "<gpu>", uuid: str = "<uuid>") -> str:
    """Remedy for a reason of the GPU ``gpu-<minor>`` of a node; empty where none is known."""
    return _REMEDIES.get(reason, "").format(node=node, gpu=gpu, uuid=uuid)
