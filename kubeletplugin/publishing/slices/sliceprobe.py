"""Probe of the API server for partitionable devices: tried out, since versions do not tell.

A gate may be on or off in any version, and a managed cluster calls its versions as it likes. The
server drops fields that it does not serve without a word, so that a slice is sent for a dry run and
what comes back is looked at.
"""

from __future__ import annotations

from typing import Any

from dra.claims.conditions import published_binding
from dra.common.resources import RESOURCE_SLICES, Obj
from dra.gpu.inventory import Inventory
from dra.kube.client import KubeApi
from dra.kube.errors import InvalidError
from dra.resourceslices.resourceslices import (
    FIELD,
    Features,
    Overhead,
    object_name,
    overhead_fields,
    taint_key,
)

_INDEX = 9999
_COUNTERS = {"probe": {"value": "1"}}


def probe(
    api: KubeApi, inventory: Inventory, *, field_manager: str, overhead: Overhead = ()
) -> Features | None:
    """Find the form of the node's slices; None where partitionable devices are not served.

    Kubernetes 1.34 takes counter sets and devices in one slice, later versions refuse that.

    Raises:
        KubeError: the server refuses slices altogether, or does not answer.
    """
    device = {
        "name": "probe",
        "consumesCounters": [{"counterSet": "probe", "counters": _COUNTERS}],
        "taints": [{"key": taint_key(inventory.driver), "effect": "NoSchedule"}],
        **published_binding(),
        **overhead_fields(overhead),
        "allowMultipleAllocations": True,
    }
    together = {"sharedCounters": [{"name": "probe", "counters": _COUNTERS}], "devices": [device]}
    try:
        kept, separate = _dry_run(api, inventory, together, field_manager), False
    except InvalidError:
        kept, separate = _dry_run(api, inventory, {"devices": [device]}, field_manager), True
    (found,) = kept["devices"]
    if not found.get("consumesCounters") or not (separate or kept.get("sharedCounters")):
        return None
    return Features(
        separate=separate,
        taints=bool(found.get("taints")),
        binding=bool(found.get("bindingConditions")),
        # Twice the devices are too many for the form of 1.34.
        shares=separate and bool(found.get("allowMultipleAllocations")),
        overhead=overhead if found.get(FIELD) else (),
    )


def _dry_run(api: KubeApi, inventory: Inventory, content: dict[str, Any], manager: str) -> Obj:
    body = {
        "apiVersion": RESOURCE_SLICES.api_version,
        "kind": RESOURCE_SLICES.kind,
        "metadata": {"name": object_name(_INDEX, driver=inventory.driver, node=inventory.node)},
        "spec": {
            "driver": inventory.driver,
            "nodeName": inventory.node,
            "pool": {"name": inventory.pool, "generation": 0, "resourceSliceCount": 1},
            **content,
        },
    }
    made = api.create(RESOURCE_SLICES, body, field_manager=manager, dry_run=True)
    spec: Obj = made["spec"]
    return spec
