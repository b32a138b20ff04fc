"""Overhead of devices (KEP-5517): what each container with a device takes of the node besides it.

A process on a GPU has host memory for it, which no pod says. Kubernetes 1.37 counts it, with the
gate ``DRANodeAllocatableResources``: kube-scheduler when it looks for room, kubelet in cgroups.
What 1.36 has instead (``nodeAllocatableResourceMappings``) is not used: kube-scheduler gives a
claim with it to one pod only (``validateNodeAllocatableDRAClaimSharing``).
"""

from __future__ import annotations

import re
from typing import Any, Final

from dra.common.quantity import QuantityError, parse_quantity

Overhead = tuple[tuple[str, str], ...]
"""Quantities by the name of a resource that nodes have themselves."""

FIELD: Final = "nodeAllocatableResources"
_RESOURCE: Final = re.compile(r"cpu|memory|ephemeral-storage|hugepages-[1-9][0-9]*[KMG]i")


def read_overhead(text: str) -> Overhead:
    """Read ``memory=512Mi,cpu=100m``; nothing from an empty text.

    Raises:
        ValueError: says which part is wrong, and what is allowed.
    """
    found: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, amount = part.partition("=")
        if not _RESOURCE.fullmatch(name):
            raise ValueError(
                f"{part!r} names no resource of a node; write cpu, memory, ephemeral-storage or "
                "hugepages-2Mi, each as memory=512Mi"
            )
        try:
            positive = parse_quantity(amount) > 0
        except QuantityError:
            positive = False
        if not positive:
            raise ValueError(f"{part!r} has no quantity above 0; write {name}=1, {name}=512Mi")
        found[name] = amount
    return tuple(sorted(found.items()))


def overhead_fields(overhead: Overhead) -> dict[str, Any]:
    """Fields of a device of a ResourceSlice; none without overhead."""
    each = {name: {"overhead": {"perContainer": amount}} for name, amount in overhead}
    return {FIELD: each} if each else {}
