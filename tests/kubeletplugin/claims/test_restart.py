"""A plugin that starts again finds everything as it left it, or mends it."""

from __future__ import annotations

import pytest

from kubeletplugin.journal.entries import State
from kubeletplugin.journal.journal import Journal
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.helpers.lostjournals import reserve
from tests.kubeletplugin.helpers.rig import Rig

SLICE = "gpu-0-mig-1g5gb-19-4"


@pytest.mark.every_variant
def test_a_restart_at_rest_changes_no_hardware_no_file_and_writes_nothing_to_the_api(
    rig: Rig,
) -> None:
    refs = [rig.claim(SLICE), rig.claim("gpu-1-mig-3g20gb-9-0", "gpu-0-mig-2g10gb-14-0")]
    for ref in refs:
        rig.prepared(ref)
        assert rig.claim_status(ref)
    wait_for("MigNode", lambda: [s[3] for s in rig.published_slices()] == ["prepared"] * 3)
    hardware, mutations = rig.machine.snapshot(), rig.mutations()
    kept = [*rig.roots.cdi.iterdir(), *rig.roots.state.glob("*.json*")]
    files = {p: (p.stat().st_ino, p.read_bytes()) for p in kept}
    rig.http.writes = []
    for _ in range(2):
        rig.restart()
        assert rig.statuses_idle()
        assert rig.daemon is not None
        rig.poll()
        rig.daemon.janitor.tend()
        rig.daemon.mignode.notify()
    assert [rig.prepared(ref) for ref in refs]
    rig.stop()
    assert rig.machine.snapshot() == hardware
    assert rig.mutations() == mutations
    assert rig.http.writes == []
    assert {p: (p.stat().st_ino, p.read_bytes()) for p in files} == files


def change_entry(rig: Rig, **changes: object) -> None:
    journal = Journal(rig.roots.state / "journal.json")
    [entry] = journal.entries()
    journal.put(entry.at(changes.pop("state"), **changes))  # type: ignore[arg-type]


@pytest.mark.every_variant
def test_after_a_reboot_the_slice_is_kept_for_its_claim_and_made_again_at_its_placement(
    rig: Rig,
) -> None:
    ref, late = rig.claim(SLICE), rig.claim("gpu-0-mig-3g20gb-9-4")
    rig.prepared(ref)
    before = rig.machine.gpu(0).gpu_instances[0].key
    rig.stop()
    rig.machine.reboot()
    for spec in rig.roots.cdi.iterdir():
        spec.unlink()  # /var/run is gone with a reboot
    rig.start()
    assert rig.slices() == []
    assert rig.published_slices() == [("gpu-0", "1g.5gb", 4, "lost")]
    assert ref.uid in rig.refused(late)
    rig.prepared(ref)
    assert rig.slices() == [(0, "1g.5gb", 4, True)]
    [entry] = rig.journal()
    [made] = rig.machine.gpu(0).gpu_instances
    assert made.key != before
    assert [c.uuid for c in made.compute_instances] == [entry.mig_uuid]
    assert entry.boot_id == rig.machine.state().boot_id
    assert len(rig.specs()) == 1
    wait_for("MigNode", lambda: [s[3] for s in rig.published_slices()] == ["prepared"])


def test_no_answer_from_the_api_server_is_no_sign_that_a_claim_is_gone(rig: Rig) -> None:
    ref = rig.claim(SLICE)
    rig.prepared(ref)
    rig.stop()
    rig.delete_claim(ref)
    rig.http.down = True
    rig.start(ready=False)
    assert rig.daemon is not None
    wait_for("recovery", lambda: rig.daemon and rig.daemon.common.readiness.is_ready)
    rig.daemon.janitor.tend()
    assert rig.slices() == [(0, "1g.5gb", 4, True)]
    assert len(rig.specs()) == 1


@pytest.mark.parametrize("comes_back", [True, False])
def test_what_was_left_half_made_stays_until_the_api_server_says_what_became_of_its_claim(
    rig: Rig, *, comes_back: bool
) -> None:
    ref = rig.claim(SLICE)
    reserve(rig, ref)
    rig.prepared(ref)
    rig.stop()
    change_entry(rig, state=State.CI_CREATED, remade=False)
    rig.http.down = True
    rig.start(ready=False)
    assert rig.daemon is not None
    wait_for("recovery", lambda: rig.is_ready)
    rig.daemon.janitor.tend(everything=True)
    assert (rig.slices(), len(rig.journal())) == ([(0, "1g.5gb", 4, True)], 1)
    if not comes_back:
        rig.set_status(ref, reservedFor=None)
    rig.http.down = False
    mutations = rig.mutations()
    if comes_back:
        rig.prepared(ref)
        assert rig.mutations() == mutations, "it was finished, not made again"
    else:
        rig.daemon.janitor.tend(everything=True)
        assert rig.clean()


def test_state_left_by_kill_is_readable_by_root_only(rig: Rig) -> None:
    rig.prepared(rig.claim(SLICE))
    modes = {p.name: p.stat().st_mode & 0o777 for p in rig.roots.state.glob("*.json")}
    assert modes == {"journal.json": 0o600, "gpus.json": 0o600}
