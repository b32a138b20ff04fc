"""Several claims on one GPU, on the node: counted, told to kubelet, given back one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dra.claims.allocation import AllocatedDevice, share_id
from dra.claims.sharing import UNSHARED, settings_of, sharing_of
from dra.common.resources import NODES, Obj
from dra.gpu.inventory import ClaimRef
from dra.gpu.shares import Share
from kubeletplugin.claims.wanted import mps_limits
from sim.nvml.machine import GpuSpec
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.helpers.rig import A100, DRIVER, Rig


@pytest.fixture
def sharing(make_rig: Callable[..., Rig]) -> Rig:
    """A node with a GPU that four claims may have, and one in MIG mode."""
    rig = make_rig(GpuSpec(A100, mig=False), GpuSpec(A100))
    rig.gpu_shares = 4
    rig.start()
    return rig


def result(rig: Rig, memory: str, *, request: str = "r0", share: str = "") -> Obj:
    common = {"request": request, "driver": DRIVER, "pool": rig.node, "device": "gpu-0"}
    if not memory:
        return common
    consumed = {"memory": memory, "cores": "20", "shares": "1"}
    return {
        **common,
        "shareID": share or share_id(f"{rig.node}/{memory}", "gpu-0"),
        "consumedCapacity": consumed,
    }


def share(rig: Rig, memory: str = "", *, namespace: str = "default") -> ClaimRef:
    return rig.claim(results=[result(rig, memory)], namespace=namespace)


def test_claims_share_a_gpu_until_it_is_full_and_leave_it_one_by_one(sharing: Rig) -> None:
    first, second = share(sharing, "30Gi"), share(sharing)
    specs = [sharing.prepared(ref) for ref in (first, second)]
    assert len({specs[0][-1], specs[1][-1]}) == 2
    assert [(e.share.memory_mib, e.share.cores) for e in sharing.journal() if e.share] == [
        (30720, 20),
        (10240, 0),
    ]
    third = share(sharing, "1Gi")
    assert "0 of 40960 MiB are left, 1024 are asked for" in sharing.refused(third)
    assert sharing.prepared(first) == specs[0], "asked again, nothing changes"
    assert sharing.unprepare(second) == ""
    sharing.prepared(third)
    assert [e.claim for e in sharing.journal()] == [first, third]
    nodes = sharing.spec(first)["devices"][0]["containerEdits"]["deviceNodes"]
    assert nodes[0]["path"] == "/dev/nvidia0"
    for ref in (first, third):
        assert sharing.unprepare(ref) == ""
    assert sharing.clean()


def test_namespaces_do_not_share_unless_their_classes_say_so(sharing: Rig) -> None:
    parameters = {
        "apiVersion": "mig.dra.dev/v1alpha1",
        "kind": "GpuConfig",
        "share": {"tenants": "any"},
    }
    opened = [{"source": "FromClass", "opaque": {"driver": DRIVER, "parameters": parameters}}]
    first = share(sharing)
    sharing.prepared(first)
    other = share(sharing, namespace="kube-system")
    assert "its shares are another namespace's" in sharing.refused(other)
    assert sharing.unprepare(first) == ""
    for namespace in ("default", "kube-system"):
        ref = sharing.claim(results=[result(sharing, "")], config=opened, namespace=namespace)
        sharing.prepared(ref)
    own = [{**opened[0], "source": "FromClaim"}]
    ref = sharing.claim(results=[result(sharing, "")], config=own)
    assert "only a DeviceClass may say it" in sharing.refused(ref)


def test_a_gpu_that_is_shared_no_more_keeps_its_claims_and_takes_no_others(sharing: Rig) -> None:
    first = share(sharing, "1Gi")
    before = sharing.prepared(first)
    sharing.gpu_shares = 1
    sharing.restart()
    assert sharing.prepared(first) == before
    assert "is not shared, and the claim was given a part of it" in sharing.refused(
        share(sharing, "2Gi")
    )
    assert "is held by claim" in sharing.refused(share(sharing))
    assert sharing.unprepare(first) == ""
    sharing.prepared(share(sharing))


@pytest.mark.parametrize("gpu_shares", [4, 1])
def test_a_lost_journal_is_rebuilt_with_all_that_share(sharing: Rig, gpu_shares: int) -> None:
    """Also where the node offers no more shares since."""
    refs = [share(sharing, memory) for memory in ("1Gi", "2Gi")]
    for ref in refs:
        sharing.prepared(ref)
        pod = {"resource": "pods", "name": "p", "uid": ref.uid}
        sharing.set_status(ref, reservedFor=[pod])
    before = {e.key: e.share for e in sharing.journal()}
    sharing.stop()
    for path in sharing.roots.state.glob("*"):
        if path.name.startswith("journal"):
            path.unlink()
    sharing.gpu_shares = gpu_shares
    sharing.start()
    for ref in refs:
        sharing.prepared(ref)
    assert {e.key: e.share for e in sharing.journal()} == before


def test_the_class_of_a_node_says_how_many_share_without_a_restart(
    make_rig: Callable[..., Rig], folder: Path
) -> None:
    rig = make_rig(GpuSpec(A100, mig=False))
    rig.node_classes = folder / "classes"
    rig.node_classes.mkdir()
    text = "apiVersion: mig.dra.dev/v1alpha1\nkind: MigNodeClass\nmode: whole\nshares: {}\n"
    (rig.node_classes / "default.yaml").write_text(text.format(1))
    (rig.node_classes / "by-three.yaml").write_text(text.format(3))
    rig.start()

    def shares() -> int:
        return int(rig.mignode()["status"]["gpus"][0].get("sharing", {}).get("shares", 1))

    assert shares() == 1
    rig.api.patch(NODES, rig.node, {"metadata": {"labels": {"mig.dra.dev/node-class": "by-three"}}})
    wait_for("shares", lambda: shares() == 3)
    rig.prepared(share(rig, "13Gi"))
    assert "is not allowed" not in rig.refused(share(rig, "28Gi"))
    rig.api.patch(NODES, rig.node, {"metadata": {"labels": {"mig.dra.dev/node-class": "nobody"}}})
    rig.prepared(share(rig, "1Gi"))


@pytest.mark.parametrize(
    ("mps", "share", "limits"),
    [
        ({}, None, (None, None)),
        ({}, Share(8000, 0, "a"), (None, 8000)),
        ({}, Share(8000, 30, "a"), (30, 8000)),
        (
            {"activeThreadPercentage": 20, "pinnedDeviceMemoryLimit": "1Gi"},
            Share(8000, 30, "a"),
            (20, 1024),
        ),
        (
            {"activeThreadPercentage": 50, "pinnedDeviceMemoryLimit": "16Gi"},
            Share(8000, 30, "a"),
            (30, 8000),
        ),
    ],
)
def test_mps_holds_clients_to_the_share_of_their_claim(
    mps: Obj, share: Share | None, limits: tuple[int | None, int | None]
) -> None:
    parameters = {
        "apiVersion": "mig.dra.dev/v1alpha1",
        "kind": "GpuConfig",
        "sharing": {"strategy": "MPS", **({"mps": mps} if mps else {})},
    }
    entries = [{"opaque": {"driver": DRIVER, "parameters": parameters}}]
    sharing = sharing_of(settings_of(entries, DRIVER), "r0")
    device = AllocatedDevice("r0", DRIVER, "p", "gpu-0", sharing=sharing)
    assert mps_limits(device, share) == limits
    assert mps_limits(replace(device, sharing=UNSHARED), share) is None
