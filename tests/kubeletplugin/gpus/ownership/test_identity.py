"""Identity: whose an instance is, told by record, ids and UUID."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kubeletplugin.gpus.identity import FoundInstance
from kubeletplugin.host.processes import sees_processes
from kubeletplugin.host.roots import Roots
from kubeletplugin.journal.entries import Entry, State
from kubeletplugin.nvml.errors import NotSupportedError
from kubeletplugin.nvml.instances import GpuInstance, list_gpu_instances
from sim.nvml.machine import GpuSpec
from sim.nvml.products import OTHERS, Variants
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.gpus.lifecycle.test_managers import with_options
from tests.kubeletplugin.gpus.lifecycle.test_migmode import H100, mode_changes
from tests.kubeletplugin.helpers.gpubench import ELSEWHERE, GpuBench
from tests.kubeletplugin.helpers.reported import events, reasons
from tests.kubeletplugin.helpers.rig import Rig

GET_GI = "nvmlDeviceGetGpuInstanceById"


@pytest.fixture
def bench(tmp_path: Path) -> GpuBench:
    return GpuBench(tmp_path)


def others(bench: GpuBench, entry: Entry) -> FoundInstance:
    found = bench.hardware.identity.find_own_instance(entry)
    assert (found.own, found.whole, found.bare) == (None, False, False)
    assert bench.hardware.identity.own_instance(entry) is None
    assert not bench.hardware.identity.is_whole(entry)
    return found


NOT_THERE: dict[str, dict[str, object]] = {
    "of another boot": {"boot_id": "before"},
    "a whole GPU": {"placement": None, "profile_id": None},
    "without a profile": {"profile_id": None},
    "without a placement": {"placement": None},
    "elsewhere": {"placement": ELSEWHERE},
    "of another profile": {"profile_id": 20},
    "of another id": {"gi_id": 99},
}


@pytest.mark.parametrize("case", NOT_THERE)
def test_what_does_not_agree_with_the_record_is_neither_its_own_nor_in_doubt(
    bench: GpuBench, case: str
) -> None:
    entry = replace(bench.made("a", State.PREPARED), **NOT_THERE[case])  # type: ignore[arg-type]
    assert bench.hardware.identity.find_own_instance(entry) == FoundInstance()


BARE_WHY = "but its compute instance is not in it"


@pytest.mark.parametrize("state", [State.PREPARED, State.LOST, State.LEFTOVER, State.TOMBSTONE])
def test_one_that_lacks_the_compute_instance_that_nobody_destroyed_is_of_another(
    bench: GpuBench, state: State
) -> None:
    entry = bench.made("a", state)
    bench.destroy_compute_instances(entry)
    found = others(bench, entry)
    assert "(with no compute instance) lies" in found.other
    assert found.other.endswith(BARE_WHY)


@pytest.mark.parametrize("state", [s for s in State if s is not State.CI_DESTROYED])
@pytest.mark.parametrize("driver", ["new", "place"])
def test_boot_place_ids_and_uuid_are_enough_in_every_state(
    tmp_path: Path, state: State, driver: str
) -> None:
    bench = GpuBench(tmp_path, variants=Variants(mig_uuid=driver))  # type: ignore[arg-type]
    entry = bench.made("a", state)
    bench.forget()
    assert bench.hardware.identity.is_whole(entry)


# -- identity: owners of all instances of a GPU, and GPUs that do not answer


NOT_SUPPORTED = 3


MIG_MODE = "nvmlDeviceGetMigMode"


def test_a_gpu_that_has_forgotten_that_it_has_mig_is_not_believed(bench: GpuBench) -> None:
    entry = bench.made("a", State.PREPARED)
    bench.keep(GET_GI, NOT_SUPPORTED)
    bench.keep(MIG_MODE, NOT_SUPPORTED)
    with pytest.raises(NotSupportedError):
        bench.hardware.identity.find_own_instance(entry)


def present(bench: GpuBench) -> tuple[GpuInstance, ...]:
    geometry = bench.unit.card.geometry
    assert geometry is not None
    return list_gpu_instances(bench.session, bench.unit.uuid, geometry)


@pytest.mark.parametrize(
    "differs", [{"boot_id": "before"}, {"gi_id": 99}, {"profile_id": 14}, {"placement": ELSEWHERE}]
)
def test_an_entry_that_differs_in_boot_id_or_place_owns_no_instance(
    bench: GpuBench, differs: dict[str, object]
) -> None:
    entry = bench.made("a", State.PREPARED)
    assert [*bench.identity.owners(present(bench), [entry]).values()] == [entry]
    other = replace(entry, **differs)  # type: ignore[arg-type]
    assert bench.identity.owners(present(bench), [other]) == {}


# -- processes that NVML does not name, because the plugin is in a pid namespace of its own


SLICE = "gpu-0-mig-1g5gb-19-4"


HIDDEN = OTHERS["processes-hidden"]


def roots(host: Path) -> Roots:
    nowhere = Path("/nowhere")
    return Roots(host=host, driver=Path("/"), cdi=nowhere, kubelet=nowhere, state=nowhere)


@pytest.mark.parametrize(
    ("own", "seen"), [("pid:[4026531836]", True), ("pid:[4026539999]", False), ("", False)]
)
def test_where_the_nodes_is_not_shown_only_the_kernels_first_one_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, *, seen: bool
) -> None:
    link = tmp_path / "own"
    if own:
        link.symlink_to(own)
    monkeypatch.setattr("kubeletplugin.host.processes._OWN_NAMESPACE", link)
    assert sees_processes(roots(tmp_path)) is seen


def hidden(make_rig: Callable[..., Rig], *gpus: GpuSpec) -> Rig:
    rig = make_rig(*gpus)
    rig.machine.configure(variants=HIDDEN)
    return rig


@pytest.mark.usefixtures("frequent_looks")
def test_without_the_hosts_pid_namespace_no_mode_is_changed(
    make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_options(monkeypatch, enable_mig=True)
    rig = hidden(make_rig, GpuSpec(H100, mig=False))
    rig.machine.start_process(0, 11)
    rig.start()
    wait_for("the event", lambda: "MIGModeLeftOff" in dict(events(rig, rig.node)))
    assert "hostPID" in dict(events(rig, rig.node))["MIGModeLeftOff"]
    assert reasons(rig) == ["MIGDisabled"]
    assert mode_changes(rig) == 0


@pytest.mark.usefixtures("short_patience")
def test_where_nvml_names_nobody_those_who_have_the_gpu_open_are_named(rig: Rig) -> None:
    """A monitor such as DCGM: no process in the slice, and the destroy is refused."""
    proc = rig.machine.host_root / "proc"
    for pid, name, node in ((4242, "nv-hostengine", "nvidia0"), (4243, "other", "nvidia1")):
        (proc / f"{pid}/fd").mkdir(parents=True)
        (proc / f"{pid}/comm").write_text(f"{name}\n")
        (proc / f"{pid}/fd/7").symlink_to(f"/dev/{node}")
    rig.machine.configure(variants=Variants(instance_lingers=1_000_000))
    ref = rig.claim(SLICE)
    rig.prepared(ref)
    assert rig.unprepare(ref) == ""
    wait_for("the event", lambda: "SliceInUse" in dict(events(rig, ref.name)))
    text = dict(events(rig, ref.name))["SliceInUse"]
    assert "its GPU is open in nv-hostengine (4242)" in text
    assert "other" not in text


def test_owners_are_the_entries_of_instances_and_others_have_none(bench: GpuBench) -> None:
    bench.machine.create_slice(0, "2g.10gb", start=2)
    remade = bench.made("remade", State.PREPARED, ELSEWHERE)
    bench.remake(remade)
    entry = bench.made("a", State.PREPARED)
    entries = [bench.entry("elsewhere", gi_id=99), remade, entry]
    assert len(present(bench)) == 3
    assert bench.hardware.identity.owners(present(bench), entries) == {entry.gi_id: entry}
