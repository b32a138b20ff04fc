"""Consumable capacity (KEP-5075) of devices that several claims may have, by kube-scheduler.

A capacity without a request policy is consumed whole by whoever does not ask for some of it: each
has one. kube-scheduler knows no namespaces: the node refuses a claim of another one. A server
without consumable capacity drops the fields, and the device is given to one claim at a time.

Of a slice the counters are consumed once, however many claims have it: kube-scheduler leaves them
out where some capacity of a device is in use, and takes them off by device, not by claim (1.36,
``allocateDevice`` and ``checkAvailableCounters`` in the allocators incubating and experimental). In
one attempt it does not give back those of a share that it has tried in vain: a claim of several
devices may be found no room that there is, never room that there is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dra.common.quantity import mebibytes
from dra.gpu.shares import ShareOffer

_NONE_NEEDED = {"default": "0", "validRange": {"min": "0"}}


def shared_fields(
    capacity: Mapping[str, Any], memory_mib: int, sharing: ShareOffer
) -> dict[str, Any]:
    """Fields of a device with ``capacity``, of which ``memory_mib`` is the memory.

    They are its capacity with what a claim consumes, and that it may be allocated several times.
    """
    default = mebibytes(memory_mib // sharing.shares)
    policies = {
        "memory": {"default": default, "validRange": {"min": "1Mi", "step": "1Mi"}},
        "cores": {"default": "0", "validRange": {"min": "0", "step": "1"}},
        "shares": {"default": "1", "validValues": ["1"]},
    }
    consumed = {
        name: {**value, "requestPolicy": policies.get(name, _NONE_NEEDED)}
        for name, value in capacity.items()
    }
    return {"allowMultipleAllocations": True, "capacity": consumed}
