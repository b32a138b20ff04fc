"""Consumable capacity (KEP-5075) of a GPU that several claims may have, counted by kube-scheduler.

A capacity without a request policy is consumed whole by whoever does not ask for some of it: each
has one. kube-scheduler knows no namespaces: the node refuses a claim of another one. A server
without consumable capacity drops the fields, and the GPU is given to one claim at a time.
"""

from __future__ import annotations

from typing import Any

from dra.common.quantity import mebibytes
from dra.gpu.devices import gpu_capacity
from dra.gpu.inventory import Gpu
from dra.gpu.shares import ShareOffer


def shared_fields(gpu: Gpu, sharing: ShareOffer) -> dict[str, Any]:
    """Fields of the device of ``gpu``: its capacity, and that it may be allocated several times."""
    default = mebibytes(gpu.memory_mib // sharing.shares)
    policies = {
        "memory": {"default": default, "validRange": {"min": "1Mi", "step": "1Mi"}},
        "multiprocessors": {"default": "0", "validRange": {"min": "0"}},
        "cores": {"default": "0", "validRange": {"min": "0", "step": "1"}},
        "shares": {"default": "1", "validValues": ["1"]},
    }
    capacity = {
        name: {**value, "requestPolicy": policies[name]}
        for name, value in gpu_capacity(gpu).items()
    }
    return {"allowMultipleAllocations": True, "capacity": capacity}
