"""Today's MigNode with all that it can say: each state, each optional field."""

from __future__ import annotations

from dataclasses import replace

from api.mignode import KeptInstance, KeptLabel
from dra.common.resources import Obj
from dra.gpu.geometry import Engines, Geometry, Placement
from dra.gpu.inventory import (
    ClaimRef,
    Drain,
    FailedClaim,
    GpuHealth,
    GpuLayout,
    IdleInstance,
    Instance,
    InstanceState,
    Inventory,
    NodeMode,
    Takeover,
    TakeoverProgress,
)
from dra.gpu.mignode import to_mignode
from tests.controller.helpers.objects import gpu
from tests.dra.gpu.test_mignode import INVENTORY
from tests.dra.gpus import A100, facts_to_tell

_PARTLY_OFFERED = Geometry((replace(A100.profiles[0], engines=Engines(1, 1, 1, 1, 1)),), 8)
_HEALTH = GpuHealth("Reset", "Completed", "Default", ("why",), ("python (1)",))


def inventory() -> Inventory:
    """A node with an instance in each state, and all that a MigNode tells besides."""
    first, *others = INVENTORY.gpus
    states = zip(InstanceState, range(7), strict=False)
    held = tuple(
        Instance(
            Placement(start, 1),
            state,
            profile_id=19,
            profile="1g.5gb",
            gpu_instance_id=start,
            compute_instance_id=0,
            uuid=f"MIG-{start}",
            claim=ClaimRef("ns", f"claim-{start}", f"uid-{start}"),
            message="why",
            unhealthy="XID 79",
        )
        for state, start in states
    )
    return replace(
        INVENTORY,
        gpus=(
            replace(
                first,
                **facts_to_tell(first),
                instances=held,
                idle=(IdleInstance(Placement(6, 1), "ns", 19),),
                layout=GpuLayout("all-1g", (Placement(6, 1),)),
                slice_shares=2,
            ),
            *others,
            gpu(
                7,
                mig=False,
                brand="Nvidia",
                claims=(ClaimRef("ns", "claim", "uid"),),
                shares=4,
            ),
            gpu(8, geometry=_PARTLY_OFFERED, shares=4, health=_HEALTH),
        ),
        message="why",
        drain=Drain(("gpu-1",), "driver 580", "2026-01-01T00:00:00Z"),
        takeover=Takeover(
            wish="return",
            since="2026-01-01T00:00:00Z",
            labels=(KeptLabel("nvidia.com/gpu.deploy.device-plugin", "true"),),
            instances=(KeptInstance("GPU-0", Placement(0, 1), 19),),
            restore=True,
        ),
        progress=TakeoverProgress("2026-01-01T00:00:00Z", "pending", "why"),
        resumed="2026-01-01T00:00:00.000001Z",
        failed_claims=(FailedClaim("ns", "f", "uid-f", "2026-01-01T00:00:00Z", True, "GPU-0"),),
        mode=NodeMode("layout", "pending", "all-1g", "why"),
        capabilities=("HostUsersOnly",),
    )


def mignode() -> Obj:
    """The MigNode of such a node, with what is no part of the inventory."""
    written = to_mignode(inventory(), transition_time="2026-01-01T00:00:00Z")
    written["status"]["lastHeartbeatTime"] = "2026-01-01T00:00:00Z"
    return written
