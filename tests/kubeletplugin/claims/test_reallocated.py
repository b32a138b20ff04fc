"""A claim whose allocation is changed while the node holds a device for it."""

from __future__ import annotations

from dra.common.resources import RESOURCE_CLAIMS
from tests.kubeletplugin.helpers.rig import DRIVER, Rig


def test_a_claim_that_was_given_another_device_is_refused_until_the_old_one_is_released(
    rig: Rig,
) -> None:
    old, new = "gpu-0-mig-1g5gb-19-4", "gpu-1-mig-1g5gb-19-2"
    ref = rig.claim(old)
    rig.prepared(ref)
    body = {"status": {"allocation": None}}
    rig.api.patch(RESOURCE_CLAIMS, ref.name, body, namespace="default", subresource="status")
    result = {"request": "r0", "driver": DRIVER, "pool": rig.node, "device": new}
    rig.allocate(ref, [result])
    mutations = rig.mutations()
    error = rig.refused(ref)
    assert old in error
    assert new in error
    assert rig.mutations() == mutations
    assert rig.slices() == [(0, "1g.5gb", 4, True)]
    assert rig.unprepare(ref) == ""
    assert rig.prepared(ref)
    assert rig.slices() == [(1, "1g.5gb", 2, True)]
