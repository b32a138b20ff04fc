"""Problem that an XID makes of a GPU or of a slice on it."""

from __future__ import annotations

from dra.gpu.reasons import GpuReason
from kubeletplugin.gpus.health.gpu_problems import GpuProblem
from kubeletplugin.gpus.known_gpu import KnownGpu
from kubeletplugin.nvml.errors import reset
from kubeletplugin.nvml.events import RESET_XIDS, Scope, Xid


def xid_problem(gpu: KnownGpu, xid: Xid, scope: Scope, *, at: float, node: str) -> GpuProblem:
    """The problem of ``gpu``, or of the slice in which it happened, with its remedy.

    ``scope`` is the slice or the GPU; ``at`` is monotonic time, ``node`` the Node's name.
    """
    instances = gpu.seen.instances if gpu.seen is not None else ()
    if scope is Scope.SLICE:
        message = (
            f"XID {xid.number} in GPU instance {xid.gi_id} of {gpu}; it counts "
            "as healthy once it is made anew, or after 5 minutes without another"
        )
        own = frozenset(i.uuid for i in instances if i.gpu_instance_id == xid.gi_id and i.uuid)
        return GpuProblem(gpu.uuid, GpuReason.XID_ERROR, message, at, gi_id=xid.gi_id, beside=own)
    needs_reset = xid.number in RESET_XIDS
    remedy = "it counts as healthy after 5 minutes without another"
    if needs_reset:
        remedy = reset(gpu.uuid, node=node, gpu=gpu.name)
    return GpuProblem(
        gpu.uuid,
        GpuReason.XID_ERROR,
        f"XID {xid.number} on {gpu}: {remedy}",
        at,
        needs_reset=needs_reset,
        beside=frozenset(i.uuid for i in instances if i.uuid),
    )
