"""A plugin that starts again finds everything as it left it, or mends it."""

from __future__ import annotations

import pytest

from kubeletplugin.journal.entries import State
from kubeletplugin.journal.journal import Journal
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.helpers.lostjournals import reserve
from tests.kubeletplugin.helpers.rig import DRIVER, Rig

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


def test_a_missing_cdi_spec_is_written_again_and_leftovers_are_swept(rig: Rig) -> None:
    ref = rig.claim(SLICE)
    rig.prepared(ref)
    rig.stop()
    name = f"k8s.{DRIVER}-claim_{ref.uid}.yaml"
    before = (rig.roots.cdi / name).read_bytes()
    (rig.roots.cdi / name).unlink()
    (rig.roots.cdi / f"k8s.{DRIVER}-claim_gone.yaml").write_text("")
    (rig.roots.cdi / f"{name}.x1.tmp").write_text("half")
    (rig.roots.cdi / "k8s.gpu.example.com-claim_other.yaml").write_text("theirs")
    rig.start()
    assert rig.specs() == ["k8s.gpu.example.com-claim_other.yaml", name]
    assert (rig.roots.cdi / name).read_bytes() == before


def test_capability_minors_that_changed_are_written_to_the_spec(rig: Rig) -> None:
    ref = rig.claim(SLICE)
    rig.prepared(ref)
    rig.stop()
    made = rig.machine.gpu(0).gpu_instances[0]
    access = (
        rig.machine.host_root / f"proc/driver/nvidia/capabilities/gpu0/mig/gi{made.id}/ci0/access"
    )
    access.write_text("DeviceFileMinor: 4000\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
    rig.start()
    [device] = rig.spec(ref)["devices"]
    assert device["containerEdits"]["deviceNodes"][2]["minor"] == 4000


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


@pytest.mark.parametrize("state", [State.INTENT, State.GI_CREATED])
def test_after_a_reboot_what_was_half_made_before_it_is_nothing_to_undo(
    rig: Rig, state: State
) -> None:
    rig.prepared(rig.claim(SLICE))
    rig.stop()
    [entry] = rig.journal()
    change_entry(
        rig,
        state=state,
        gi_id=None if state is State.INTENT else entry.gi_id,
        ci_id=None,
        mig_uuid="",
        remade=False,
    )
    rig.machine.reboot()
    foreign = rig.machine.create_slice(0, "1g.5gb", start=4, compute=False)
    assert foreign.gpu_instance == entry.gi_id
    rig.start()
    assert rig.journal() == ()
    assert rig.slices() == [(0, "1g.5gb", 4, False)]


def test_a_gpu_keeps_its_name_when_minors_change_places(rig: Rig) -> None:
    ref = rig.claim("gpu-1-mig-1g5gb-19-0")
    rig.prepared(ref)
    second = rig.machine.gpu(1).uuid
    rig.stop()
    rig.machine.reboot(minors=[1, 0])
    rig.start()
    rig.prepared(ref)
    assert rig.machine.gpu(second).gpu_instances
    assert rig.spec(ref)["devices"][0]["containerEdits"]["deviceNodes"][0]["path"] == (
        "/dev/nvidia0"
    )


def test_a_claim_that_is_gone_or_replaced_is_unprepared(rig: Rig) -> None:
    gone, replaced, kept = (
        rig.claim(SLICE),
        rig.claim("gpu-0-mig-1g5gb-19-0"),
        rig.claim("gpu-1-mig-1g5gb-19-0"),
    )
    for ref in (gone, replaced, kept):
        rig.prepared(ref)
    rig.stop()
    rig.delete_claim(gone)
    rig.delete_claim(replaced)
    rig.claim("gpu-0-mig-1g5gb-19-1", name=replaced.name)
    rig.start()
    wait_for("the janitor", lambda: [e.claim for e in rig.journal()] == [kept])
    assert rig.slices() == [(1, "1g.5gb", 0, True)]
    assert len(rig.specs()) == 1


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
