"""Claims whose slices are made before kubelet asks for them."""

from __future__ import annotations

from dra.gpu.inventory import ClaimRef
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.helpers.rig import Rig

DEVICE, BESIDE = "gpu-0-mig-1g5gb-19-4", "gpu-0-mig-1g5gb-19-5"
OVERLAPPING, ELSEWHERE = "gpu-0-mig-2g10gb-14-4", "gpu-1-mig-1g5gb-19-0"
CREATE_GI = "nvmlDeviceCreateGpuInstance*"


def creations(rig: Rig) -> int:
    return sum("CreateGpuInstance" in name for name in rig.mutations())


def made_ahead(rig: Rig, ref: ClaimRef) -> bool:
    entries = [e for e in rig.journal() if e.claim == ref]
    whole = [e for e in entries if e.early and e.ci_id is not None]
    return bool(whole) and len(whole) == whole[0].total


def acted(rig: Rig, action: str) -> float:
    value = rig.telemetry.registry.get_sample_value(
        "mig_dra_recovery_actions_total", {"action": action}
    )
    return value or 0.0


def ahead(rig: Rig, *devices: str, namespace: str = "default") -> ClaimRef:
    """A claim whose slices were made before kubelet asks for them."""
    ref = rig.claim(*devices, expected=True, namespace=namespace)
    wait_for("the slice", lambda: made_ahead(rig, ref))
    return ref


def given_back(rig: Rig, ref: ClaimRef) -> bool:
    return not any(e.claim == ref for e in rig.journal()) and rig.clean()
