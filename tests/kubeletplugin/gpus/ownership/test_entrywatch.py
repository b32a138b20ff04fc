"""Directories of /proc as witnesses: in the simulated host's folder, and in the kernel's /proc."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from dra.gpu.geometry import Placement
from dra.gpu.inventory import ClaimRef
from kubeletplugin.gpus.ownership.belonging import Continuity
from kubeletplugin.gpus.ownership.entrywatch import EntryWatch, still_there
from kubeletplugin.host.roots import Roots
from kubeletplugin.journal.journal import Entry, State
from sim.nvml.files import host
from sim.nvml.machine import GpuSpec, Machine
from tests.kubeletplugin.helpers.rig import A100
from tests.kubeletplugin.journal.test_journal import entry

SAME, OTHER, UNKNOWN = Continuity.SAME, Continuity.OTHER, Continuity.UNKNOWN


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine.create(tmp_path / "hw", [GpuSpec(A100)])


def watch(machine: Machine) -> EntryWatch:
    """What a new process knows."""
    none = Path("/nonexistent")
    roots = Roots(host=machine.host_root, driver=none, cdi=none, kubelet=none, state=none)
    return EntryWatch(roots, minor_of=lambda uuid: machine.gpu(uuid).minor)


def made(machine: Machine) -> Entry:
    """A slice, as an entry has it."""
    slice_ = machine.create_slice(0, "1g.5gb", start=4)
    return entry(
        gpu=slice_.gpu,
        gi_id=slice_.gpu_instance,
        ci_id=slice_.compute_instance,
        mig_uuid=slice_.uuid,
        placement=Placement(4, 1),
        state=State.PREPARED,
    )


def exchange(machine: Machine, mine: Entry) -> None:
    """Somebody destroys the slice and makes one that gets the same ids."""
    assert mine.gi_id is not None
    machine.destroy_slice(0, mine.gi_id)
    theirs = made(machine)
    assert (theirs.gi_id, theirs.ci_id) == (mine.gi_id, mine.ci_id)


def test_what_this_process_made_is_known_until_it_is_removed(machine: Machine) -> None:
    mine, eyes = made(machine), watch(machine)
    assert eyes.tell(mine) == (UNKNOWN, UNKNOWN)
    eyes.begin(mine)
    assert eyes.tell(mine) == (SAME, SAME)
    exchange(machine, mine)
    assert eyes.tell(mine) == (OTHER, OTHER)
    eyes.begin(mine)  # made again by this process
    assert eyes.tell(mine) == (SAME, SAME)


def test_a_mark_tells_a_new_process(machine: Machine) -> None:
    mine = made(machine)
    watch(machine).begin(mine)
    assert watch(machine).tell(mine) == (SAME, SAME)
    exchange(machine, mine)
    assert watch(machine).tell(mine) == (UNKNOWN, UNKNOWN), "it may not have been allowed"
    watch(machine).begin(mine)
    assert watch(machine).tell(mine) == (SAME, SAME)


def test_that_a_mark_is_gone_tells_where_the_gpus_own_is_there(machine: Machine) -> None:
    mine = replace(made(machine), marked=True)
    eyes = watch(machine)
    assert eyes.begin(mine)
    eyes.mark_gpu(mine.gpu, [mine])
    assert watch(machine).tell(mine) == (SAME, SAME)
    exchange(machine, mine)
    assert watch(machine).tell(mine) == (OTHER, OTHER)
    assert watch(machine).tell(replace(mine, marked=False)) == (UNKNOWN, UNKNOWN)
    half = replace(mine, ci_id=None)
    assert watch(machine).tell(half) == (OTHER, UNKNOWN), "it may be one that nobody has marked yet"
    shutil.rmtree(machine.host_root / "proc/driver/nvidia/capabilities")
    host.sync_capabilities(machine.host_root, machine.state())
    assert watch(machine).tell(mine) == (UNKNOWN, UNKNOWN), "a driver shows all of them anew"


def test_the_gpu_is_marked_once_all_of_its_instances_are(machine: Machine) -> None:
    mine = replace(made(machine), marked=True)
    gone = replace(mine, gi_id=13, claim=ClaimRef("default", "gone", "uid-gone"))
    for entries, told in (([mine, gone], UNKNOWN), ([mine], OTHER)):
        watch(machine).begin(mine)
        watch(machine).mark_gpu(mine.gpu, entries)
        exchange(machine, mine)
        assert watch(machine).tell(mine) == (told, told)


def test_what_was_held_while_nobody_may_have_had_the_gpu_open_tells_nothing(
    machine: Machine,
) -> None:
    mine, openings = made(machine), [1]
    none = Path("/nonexistent")
    roots = Roots(host=machine.host_root, driver=none, cdi=none, kubelet=none, state=none)
    eyes = EntryWatch(roots, minor_of=lambda _: 0, generation=lambda: openings[0])
    assert eyes.tell(mine) == (UNKNOWN, UNKNOWN)
    eyes.begin(mine)
    exchange(machine, mine)
    assert eyes.tell(mine) == (OTHER, OTHER)
    openings[0] = 2
    assert eyes.tell(mine) == (UNKNOWN, UNKNOWN)


def test_where_nothing_can_be_marked_a_new_process_knows_nothing(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    mine, eyes = made(machine), watch(machine)
    monkeypatch.setattr(os, "chmod", refuse)
    eyes.begin(mine)
    assert eyes.tell(mine) == (SAME, SAME), "what is held open tells all the same"
    assert watch(machine).tell(mine) == (UNKNOWN, UNKNOWN)


def test_only_the_compute_instance_was_exchanged(machine: Machine) -> None:
    mine, eyes = made(machine), watch(machine)
    eyes.begin(mine)
    assert mine.gi_id is not None
    machine.destroy_compute_instances(0, mine.gi_id)
    assert eyes.tell(mine) == (SAME, OTHER)
    assert eyes.tell(replace(mine, ci_id=None)) == (SAME, UNKNOWN)


def test_a_compute_instance_whose_id_is_off_the_record_is_the_only_one(machine: Machine) -> None:
    mine, eyes = made(machine), watch(machine)
    eyes.begin(mine)
    leaving = replace(mine, ci_id=None, state=State.LEFTOVER)
    assert eyes.tell(leaving) == (SAME, SAME)
    assert watch(machine).tell(leaving) == (SAME, SAME)


def test_descriptors_are_closed_with_their_entries(machine: Machine) -> None:
    mine, eyes = made(machine), watch(machine)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - of this process
    for _ in range(3):
        eyes.begin(mine)
        eyes.hold(mine)
    assert len(os.listdir("/proc/self/fd")) == before + 2  # noqa: PTH208
    eyes.keep_only([mine.key])
    assert len(os.listdir("/proc/self/fd")) == before + 2  # noqa: PTH208
    eyes.keep_only([])
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_a_gpu_that_is_not_in_the_node_tells_nothing(machine: Machine) -> None:
    mine = made(machine)
    none = Path("/nonexistent")
    roots = Roots(host=machine.host_root, driver=none, cdi=none, kubelet=none, state=none)
    eyes = EntryWatch(roots, minor_of=lambda _: None)
    eyes.begin(mine)
    assert eyes.tell(mine) == (UNKNOWN, UNKNOWN)


@contextmanager
def opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def test_a_directory_of_the_kernels_proc_tells_that_its_process_has_ended() -> None:
    process = subprocess.Popen(["sleep", "600"])
    try:
        with opened(Path(f"/proc/{process.pid}")) as descriptor:
            assert still_there(descriptor, "stat") is SAME
            process.kill()
            process.wait()
            assert still_there(descriptor, "stat") is not SAME
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """The image of a file system that can be mounted: its directory in /proc comes and goes."""
    if os.geteuid() or not shutil.which("mkfs.ext4") or not Path("/dev/loop-control").exists():
        pytest.skip("a file system cannot be mounted here")
    image = tmp_path / "disk"
    image.write_bytes(b"\0" * (16 << 20))
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    return image


@contextmanager
def mounted(image: Path) -> Iterator[Path]:
    """The directory that the kernel keeps in /proc for the file system, which is mounted."""
    place = image.with_name("mounted")
    place.mkdir(exist_ok=True)
    before = set(Path("/proc/fs/ext4").iterdir()) if Path("/proc/fs/ext4").is_dir() else set()
    if subprocess.run(["mount", "-o", "loop", str(image), str(place)], check=False).returncode:
        pytest.skip("mounting is not permitted here")
    try:
        [folder] = set(Path("/proc/fs/ext4").iterdir()) - before
        yield folder
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_an_entry_that_a_kernel_module_removed_and_made_again_is_told_from_the_first(
    disk: Path,
) -> None:
    """The same calls of the kernel as for capabilities: proc_mkdir, proc_create, proc_remove."""
    with mounted(disk) as folder:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        folder.chmod(stat.S_IMODE(folder.stat().st_mode) | stat.S_ISVTX)
        assert still_there(descriptor, "mb_groups") is SAME
        assert folder.stat().st_mode & stat.S_ISVTX
    try:
        assert still_there(descriptor, "mb_groups") is OTHER
        with mounted(disk) as again:
            assert again == folder
            assert still_there(descriptor, "mb_groups") is OTHER
            assert not again.stat().st_mode & stat.S_ISVTX
    finally:
        os.close(descriptor)
