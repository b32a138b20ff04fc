"""A claim whose allocation is changed while the node holds a device for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dra.common.resources import RESOURCE_CLAIMS
from dra.gpu.inventory import ClaimRef
from sim.nvml.machine import GpuSpec
from tests.kubeletplugin.helpers.rig import A100, Rig

OLD = "gpu-0-mig-1g5gb-19-4"
NEW = "gpu-1-mig-1g5gb-19-2"
PID = 4711


def give(rig: Rig, ref: ClaimRef, device: str) -> None:
    """Another allocation in the place of the claim's."""
    body = {"status": {"allocation": None}}
    rig.api.patch(RESOURCE_CLAIMS, ref.name, body, namespace="default", subresource="status")
    rig.allocate(ref, [rig.result(device)])


@pytest.mark.parametrize(
    ("device", "slices"),
    [
        (NEW, [(1, "1g.5gb", 2, True)]),
        ("gpu-0-mig-1g5gb-19-0", [(0, "1g.5gb", 0, True)]),
        ("gpu-0-mig-2g10gb-14-4", [(0, "2g.10gb", 4, True)]),
    ],
    ids=["another GPU", "another place", "over the old one"],
)
def test_the_old_slice_goes_where_nothing_runs_in_it(
    rig: Rig, device: str, slices: list[tuple[int, str, int, bool]]
) -> None:
    """After a restore of etcd kubelet asks for a pod that it ran before, and never unprepares."""
    ref = rig.claim(OLD)
    rig.prepared(ref)
    give(rig, ref, device)
    [name] = rig.own(ref)
    assert name.endswith(device)
    assert rig.slices() == slices
    assert [e.device for e in rig.journal()] == [device]
    assert rig.unprepare(ref) == ""
    assert rig.slices() == []


def test_it_is_refused_while_a_process_runs_in_the_old_slice(rig: Rig) -> None:
    ref = rig.claim(OLD)
    rig.prepared(ref)
    made = rig.machine.gpu(0).gpu_instances[0]
    rig.machine.start_process(
        0, PID, gpu_instance=made.id, compute_instance=made.compute_instances[0].id
    )
    give(rig, ref, NEW)
    mutations = rig.mutations()
    error = rig.refused(ref)
    assert OLD in error
    assert NEW in error
    assert rig.mutations() == mutations
    assert rig.slices() == [(0, "1g.5gb", 4, True)]
    rig.machine.end_process(PID)
    assert rig.prepared(ref)
    assert rig.slices() == [(1, "1g.5gb", 2, True)]


def test_it_is_refused_while_the_node_holds_a_whole_gpu_for_it(
    make_rig: Callable[..., Rig],
) -> None:
    """NVML tells not whose the processes of a whole GPU are."""
    rig = make_rig(GpuSpec(A100, mig=False), GpuSpec(A100))
    rig.start()
    ref = rig.claim("gpu-0")
    rig.prepared(ref)
    give(rig, ref, NEW)
    error = rig.refused(ref)
    assert "gpu-0" in error
    assert NEW in error
    assert rig.slices() == []
    assert rig.unprepare(ref) == ""
    assert rig.prepared(ref)
    assert rig.slices() == [(1, "1g.5gb", 2, True)]
