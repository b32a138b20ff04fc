"""adminAccess on the node: a whole GPU is shown, with what sees its slices, and nothing is made."""

from __future__ import annotations

from collections.abc import Callable

from dra.common.resources import Resource
from dra.gpu.inventory import ClaimRef
from sim.nvml.machine import GpuSpec
from tests.kubeletplugin.helpers.lostjournals import lose_journal, prepared, reserve
from tests.kubeletplugin.helpers.rig import A100, DRIVER, Rig

MONITOR = "/dev/nvidia-caps/nvidia-cap2"
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)


def view(rig: Rig, *devices: str) -> ClaimRef:
    labels = {"resource.kubernetes.io/admin-access": "true"}
    rig.api.patch(NAMESPACES, "default", {"metadata": {"labels": labels}})
    common = {"driver": DRIVER, "pool": rig.node, "adminAccess": True}
    results = [{"request": f"r{n}", "device": d, **common} for n, d in enumerate(devices)]
    return rig.claim(results=results)


def nodes(rig: Rig, ref: ClaimRef) -> list[list[str]]:
    devices = rig.spec(ref)["devices"]
    return [[n["path"] for n in d["containerEdits"]["deviceNodes"]] for d in devices]


def test_a_view_shows_the_gpu_and_what_sees_all_slices_and_makes_nothing(rig: Rig) -> None:
    ref = view(rig, "gpu-0", "gpu-1")
    assert len(rig.own(ref)) == 2
    assert nodes(rig, ref) == [["/dev/nvidia0", MONITOR], ["/dev/nvidia1", MONITOR]]
    assert rig.mutations() == []


def test_a_gpu_that_is_held_whole_is_looked_at_too(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(GpuSpec(A100), GpuSpec(A100, mig=False))
    rig.start()
    looking = view(rig, "gpu-1")
    rig.prepared(looking)
    holding = rig.claim("gpu-1")
    rig.prepared(holding)
    assert nodes(rig, looking) == [["/dev/nvidia1"]]
    assert rig.unprepare(looking) == ""
    assert "is held by claim" in rig.refused(rig.claim("gpu-1"))


def test_a_view_that_a_lost_journal_held_takes_no_slice_away(rig: Rig) -> None:
    looking = view(rig, "gpu-0")
    reserve(rig, looking)
    rig.prepared(looking)
    holding = prepared(rig)
    rig.stop()
    lose_journal(rig)
    rig.start()
    assert {(e.claim, e.view) for e in rig.journal()} == {(looking, True), (holding, False)}
    assert rig.published_slices() == [("gpu-0", "1g.5gb", 4, "prepared")]
    rig.prepared(rig.claim("gpu-0-mig-1g5gb-19-0"))
