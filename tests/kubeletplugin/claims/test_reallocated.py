"""A claim whose allocation is changed while the node holds a device for it."""

from __future__ import annotations

from tests.kubeletplugin.helpers.rig import Rig


def test_a_claim_that_was_given_another_device_is_refused_until_the_old_one_is_released(
    rig: Rig,
) -> None:
    """Meanwhile the plugin is away: else it gives the slice back before there is another."""
    old, new = "gpu-0-mig-1g5gb-19-4", "gpu-1-mig-1g5gb-19-2"
    ref = rig.claim(allocated=False)
    rig.allocate(ref, [rig.result(old)], reserved=True)
    rig.prepared(ref)
    rig.stop()
    rig.set_status(ref, allocation=None, reservedFor=None)
    rig.allocate(ref, [rig.result(new)], reserved=True)
    rig.start()
    mutations = rig.mutations()
    error = rig.refused(ref)
    assert old in error
    assert new in error
    assert rig.mutations() == mutations
    assert rig.slices() == [(0, "1g.5gb", 4, True)]
    assert rig.unprepare(ref) == ""
    assert rig.prepared(ref)
    assert rig.slices() == [(1, "1g.5gb", 2, True)]
