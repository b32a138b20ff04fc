"""Several claims on one slice, on the node: told to kubelet, given back one by one, found again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dra.claims.allocation import share_id
from dra.common.resources import Obj
from dra.gpu.inventory import ClaimRef
from sim.nvml.machine import GpuSpec
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.helpers.lostjournals import lose_journal
from tests.kubeletplugin.helpers.rig import A100, DRIVER, Rig

SLICE = "gpu-0-mig-2g10gb-14-0"
NAME = f"{SLICE}-share"
THERE = [(0, "2g.10gb", 0, True)]
CREATED = ["nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceCreateComputeInstance"]


@pytest.fixture
def sharing(make_rig: Callable[..., Rig]) -> Rig:
    """A node of whose slices each may be had by four claims."""
    rig = make_rig(GpuSpec(A100))
    rig.slice_shares = 4
    rig.start()
    return rig


def result(rig: Rig, memory: str = "", *, name: str = NAME) -> Obj:
    common = {"request": "r0", "driver": DRIVER, "pool": rig.node, "device": name}
    if not memory:
        return common
    consumed = {"memory": memory, "cores": "20", "shares": "1"}
    return {**common, "shareID": share_id(memory, NAME), "consumedCapacity": consumed}


def share(rig: Rig, memory: str = "", *, config: tuple[Obj, ...] = ()) -> ClaimRef:
    return rig.claim(results=[result(rig, memory)], config=config)


def configured(**parameters: object) -> Obj:
    common = {"apiVersion": "mig.dra.dev/v1alpha1", "kind": "MigDeviceConfig"}
    return {"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": common | parameters}}


def test_claims_share_a_slice_and_leave_it_one_by_one(sharing: Rig) -> None:
    first, second = share(sharing, "6000Mi"), share(sharing)
    for ref in (first, second):
        sharing.prepared(ref)
    assert (sharing.slices(), sharing.mutations()) == (THERE, CREATED)
    told = [sharing.claim_status(ref)[0] for ref in (first, second)]
    assert told[0]["data"]["migUUID"] == told[1]["data"]["migUUID"] != ""
    assert [device["data"]["share"] for device in told] == [
        {"memoryMiB": 6000, "cores": 20},
        {"memoryMiB": 2464, "cores": 0},
    ]
    specs = [sharing.spec(ref)["devices"][0] for ref in (first, second)]
    assert specs[0]["name"] == f"{first.uid}-{NAME}-{share_id('6000Mi', NAME)}"
    assert specs[0]["containerEdits"] == specs[1]["containerEdits"]
    wait_for("both in the MigNode", lambda: len(sharing.published_slices()) == 2)
    crowded = share(sharing, config=(configured(share={"memoryMiB": 2000}),))
    assert "1392 of 9856 MiB are left, 2000 are asked for" in sharing.refused(crowded)
    assert "are held by claim" in sharing.refused(sharing.claim(SLICE))
    assert sharing.unprepare(first) == ""
    assert sharing.slices() == THERE
    sharing.restart()
    sharing.prepared(crowded)
    sharing.unprepare(second)
    assert (sharing.slices(), sharing.mutations()) == (THERE, CREATED)
    assert sharing.unprepare(crowded) == ""
    assert sharing.clean()


@pytest.mark.parametrize("slice_shares", [4, 1])
def test_a_lost_journal_is_rebuilt_with_all_that_share(sharing: Rig, slice_shares: int) -> None:
    """Also where the node offers no more shares since."""
    refs = [share(sharing, memory) for memory in ("1Gi", "2Gi")]
    for ref in refs:
        sharing.prepared(ref)
        sharing.set_status(ref, reservedFor=[{"resource": "pods", "name": "p", "uid": ref.uid}])
    before = {e.key: (e.share, e.gi_id, e.mig_uuid) for e in sharing.journal()}
    sharing.stop()
    lose_journal(sharing)
    sharing.slice_shares = slice_shares
    sharing.start()
    wait_for("the journal", lambda: len(sharing.journal()) == 2)
    for ref in refs:
        sharing.prepared(ref)
    assert {e.key: (e.share, e.gi_id, e.mig_uuid) for e in sharing.journal()} == before
    assert sharing.mutations() == CREATED


def test_a_node_that_shares_no_slices_says_so(sharing: Rig) -> None:
    assert sharing.mignode()["status"]["gpus"][0]["sliceSharing"] == {"shares": 4}
    sharing.slice_shares = 1
    sharing.restart()
    assert "sliceSharing" not in sharing.mignode()["status"]["gpus"][0]
    told = sharing.refused(share(sharing))
    assert "are not shared, and the claim was given a part of one" in told
    assert sharing.clean()
