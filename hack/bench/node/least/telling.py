"""Status of a claim and MigNode as the least driver shows them: two requests, after the answer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import msgspec

from api.mignode import Instance, InstanceState, Placement
from dra.common.resources import MIG_NODES, RESOURCE_CLAIMS, Obj
from dra.gpu.names import DEFAULT_DRIVER
from dra.kube.client import KubeApi
from dra.kube.timing import rfc3339
from hack.bench.node.least.slices import Made

MIG_NODE = "least"
"""The MigNode that it writes to, of whose content it changes the instances of one GPU."""


class Telling:
    """Shows what became of a claim, in a thread of its own."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="telling")

    def tell(self, made: Made, *, there: bool) -> None:
        """Show the claim's slice as made, or as gone; returns at once."""
        self._thread.submit(self._told, made, [made] if there else [])

    def stop(self) -> None:
        """End once all is told."""
        self._thread.shutdown()

    def _told(self, made: Made, there: list[Made]) -> None:
        value = [msgspec.to_builtins(_instance(m)) for m in there]
        path = f"/status/gpus/{made.device.minor}/instances"
        change = {"op": "add", "path": path, "value": value}
        self._api.patch(MIG_NODES, MIG_NODE, [change], subresource="status", content="json")
        claim = made.claim
        body: Obj = {
            "metadata": {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid},
            "status": {"devices": [_device(m) for m in there]},
        }
        self._api.apply(RESOURCE_CLAIMS, body, field_manager=MIG_NODE, subresource="status")


def _instance(made: Made) -> Instance:
    return Instance(
        placement=Placement(start=made.device.start, size=made.size),
        state=InstanceState.PREPARED,
        profile=made.device.profile_label,
        profile_id=made.device.profile_id,
        gpu_instance_id=made.gi,
        compute_instance_id=made.ci,
        uuid=made.uuid,
        claim=made.claim,
    )


def _device(made: Made) -> Obj:
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "Prepared",
        "message": "",
        "lastTransitionTime": rfc3339(datetime.now(UTC)),
    }
    return {
        "driver": DEFAULT_DRIVER,
        "pool": made.pool,
        "device": str(made.device),
        "conditions": [condition],
        "data": {"migUUID": made.uuid},
    }
