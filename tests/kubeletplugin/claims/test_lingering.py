"""GPU instances that stay in use for a moment after their compute instance is gone.

Published of A100 with driver 570.86.15: no process is left, and the destroy is refused all the
same.
"""

from __future__ import annotations

import pytest

from kubeletplugin.journal.entries import State
from sim.nvml.products import Variants
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.helpers.rig import Rig

SLICE = "gpu-0-mig-1g5gb-19-4"
DESTROYS = "nvmlGpuInstanceDestroy"


def test_within_a_call_it_is_waited_for(rig: Rig) -> None:
    rig.machine.configure(variants=Variants(instance_lingers=1))
    ref = rig.claim(SLICE)
    rig.prepared(ref)
    assert rig.unprepare(ref) == ""
    assert rig.clean()
    assert rig.mutations().count(DESTROYS) == 2


@pytest.mark.usefixtures("short_patience")
def test_for_longer_it_is_unavailable_and_removed_later(rig: Rig) -> None:
    rig.machine.configure(variants=Variants(instance_lingers=5))
    ref = rig.claim(SLICE)
    rig.prepared(ref)
    assert rig.unprepare(ref) == "", "the pod ends"
    wait_for("the janitor", rig.clean)
    assert rig.mutations().count(DESTROYS) == 6


def test_the_next_claim_of_its_shape_gets_it_with_a_new_compute_instance(rig: Rig) -> None:
    rig.machine.configure(variants=Variants(instance_lingers=1_000_000))
    ref = rig.claim(SLICE)
    rig.prepared(ref)
    instance = rig.machine.gpu(0).gpu_instances[0]
    assert rig.unprepare(ref) == ""
    assert [e.state for e in rig.journal()] == [State.CI_DESTROYED]
    other = rig.claim(SLICE)
    rig.prepared(other)
    [again] = rig.machine.gpu(0).gpu_instances
    assert again.key == instance.key
    assert again.compute_instances[0].uuid != instance.compute_instances[0].uuid
    assert [e.claim for e in rig.journal()] == [other]


def test_what_is_kept_for_other_claims_goes_with_the_program_all_the_same(rig: Rig) -> None:
    rig.stop()
    rig.idle_seconds = 3600.0
    rig.machine.configure(variants=Variants(instance_lingers=2))
    rig.start()
    ref = rig.claim(SLICE, "gpu-0-mig-1g5gb-19-5")
    rig.prepared(ref)
    assert rig.unprepare(ref) == ""
    assert len(rig.machine.gpu(0).gpu_instances) == 2, "they are kept"
    rig.stop()
    assert rig.clean()
