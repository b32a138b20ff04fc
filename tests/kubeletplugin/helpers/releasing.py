"""Drains, and what the node says of GPUs that it releases."""

from __future__ import annotations

from dra.common.resources import MIG_NODES
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.helpers.reported import reasons
from tests.kubeletplugin.helpers.rig import Rig

FIRST, SECOND = "gpu-0-mig-1g5gb-19-4", "gpu-1-mig-1g5gb-19-0"
RELEASED = "GpuReleased"


def drain(rig: Rig, *gpus: str) -> None:
    """As kubectl mig drain does it."""
    rig.api.patch(MIG_NODES, rig.node, {"spec": {"drain": {"gpus": [*gpus] or None}}})


def resume(rig: Rig) -> None:
    rig.api.patch(MIG_NODES, rig.node, {"spec": {"drain": None}})


def held(rig: Rig) -> list[int]:
    """Indexes of the GPUs that somebody has open; -1 for a driver that is open without any."""
    uuids = [gpu.uuid for gpu in rig.machine.state().gpus]
    clients = rig.machine.clients()
    return sorted(uuids.index(u) for c in clients for u in c.gpus) or [-1] * len(clients)


def wait_released(rig: Rig, *gpus: int) -> None:
    wanted = [RELEASED if index in gpus else "" for index in range(len(reasons(rig)))]
    wait_for("the GPUs to be released", lambda: reasons(rig) == wanted)
    assert not set(held(rig)) & set(gpus)


def message(rig: Rig, gpu: int = 0) -> str:
    return str(rig.mignode()["status"]["gpus"][gpu].get("message", ""))
