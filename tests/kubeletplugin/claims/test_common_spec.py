"""The CDI spec that claims have in common."""

from __future__ import annotations

from tests.kubeletplugin.cdi.rules import hold
from tests.kubeletplugin.claims.test_lost import look
from tests.kubeletplugin.helpers.lostjournals import lose_journal, reserve
from tests.kubeletplugin.helpers.rig import DRIVER, Rig

VIDEO_SLICE = "gpu-0-mig-2g10gb-14-0"
LIBCUDA, LIBCUVID = "/usr/lib64/libcuda.so.1", "/usr/lib64/libnvcuvid.so.1"


def paths(rig: Rig, names: list[str]) -> set[str]:
    """Paths in a container that was given these devices, of files as of nodes."""
    specs = [rig.common(), *(rig.spec(e.claim) for e in rig.journal())]
    edits = [
        each
        for spec in specs
        for device in spec["devices"]
        if f"{spec['kind']}={device['name']}" in names
        for each in (spec.get("containerEdits", {}), device["containerEdits"])
    ]
    mounts = {mount["containerPath"] for each in edits for mount in each.get("mounts", ())}
    return mounts | {node["path"] for each in edits for node in each.get("deviceNodes", ())}


def test_a_claim_is_given_what_all_have_and_its_own_spec_has_its_nodes_alone(rig: Rig) -> None:
    ref = rig.claim(VIDEO_SLICE)
    names = rig.prepared(ref)
    assert names == [
        f"k8s.{DRIVER}/driver=compute",
        f"k8s.{DRIVER}/driver=video",
        f"k8s.{DRIVER}/claim={ref.uid}-{VIDEO_SLICE}",
    ]
    assert {LIBCUDA, LIBCUVID, "/dev/nvidiactl", "/dev/nvidia0"} <= paths(rig, names)
    spec = rig.spec(ref)
    assert "containerEdits" not in spec
    assert [*spec["devices"][0]["containerEdits"]] == ["deviceNodes"]
    for each in (spec, rig.common()):
        hold(each)
    look(rig)
    rig.common_path.write_text("{")
    (rig.roots.cdi / rig.specs()[0]).write_text("{")
    look(rig)
    assert rig.prepared(ref) == names
    assert {LIBCUDA, LIBCUVID, "/dev/nvidiactl", "/dev/nvidia0"} <= paths(rig, names)


def test_after_a_lost_journal_what_kubelet_was_told_is_good(rig: Rig) -> None:
    ref = rig.claim(VIDEO_SLICE)
    reserve(rig, ref)
    names = rig.prepared(ref)
    rig.stop()
    lose_journal(rig)
    rig.start()
    assert {LIBCUDA, LIBCUVID, "/dev/nvidiactl", "/dev/nvidia0"} <= paths(rig, names)
    assert rig.prepared(ref) == names
