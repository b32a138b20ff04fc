"""An upgrade of NVIDIA's driver under the plugin: it ends, and the next process has the library."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pynvml
import pytest

from dra.common.resources import EVENTS
from kubeletplugin import times
from kubeletplugin.gpus import driverlibrary
from kubeletplugin.gpus.driverlibrary import DriverLibrary, mapped_library
from kubeletplugin.host.libraries import LIBRARY_DIRECTORIES
from kubeletplugin.host.roots import Roots
from kubeletplugin.nvml.errors import translate
from sim.nvml import install, uninstall
from sim.nvml.machine import GpuSpec, Machine
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.daemon.test_program import Process, arguments, running
from tests.kubeletplugin.helpers.releasing import drain, resume, wait_released
from tests.kubeletplugin.helpers.reported import reasons
from tests.kubeletplugin.helpers.rig import A100, Rig

SLICE = "gpu-0-mig-1g5gb-19-4"
NEW = "999.9.9"
MISMATCH = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH


class Site:
    """A DriverLibrary over a simulated machine; ``ends`` counts how often it ended the process."""

    def __init__(self, machine: Machine, folder: Path) -> None:
        self.machine = machine
        self.now = 1000.0
        self.events: list[str] = []
        self.ends = 0
        (folder / "state").mkdir(exist_ok=True)
        self.roots = Roots(
            host=machine.host_root,
            driver=Path("/"),
            cdi=folder / "cdi",
            kubelet=folder / "k",
            state=folder / "state",
        )
        self.begin()

    def begin(self) -> None:
        """A new process."""
        install(self.machine.directory)
        self.library = DriverLibrary(
            self.roots,
            LIBRARY_DIRECTORIES,
            end=self._end,
            reports=self,  # type: ignore[arg-type]
            clock=self,  # type: ignore[arg-type]
        )

    def fail(self) -> None:
        """nvmlInit says that the versions differ, until that lasts."""
        for _ in range(2):
            self.library.note_failure(translate("nvmlInit", MISMATCH))
            self.now += times.MISMATCH_SECONDS

    def monotonic(self) -> float:
        return self.now

    def report_node(self, _reason: str, message: str, *, warning: bool = False) -> None:
        assert not warning
        self.events.append(message)

    def _end(self) -> None:
        self.ends += 1


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    yield Site(Machine.create(tmp_path / "hw", [GpuSpec(A100)]), tmp_path)
    uninstall()


def test_a_library_that_was_replaced_on_the_disk_ends_the_process_once(site: Site) -> None:
    site.library.note_answer()
    old = site.machine.state().driver_version
    site.machine.upgrade_driver(NEW)
    site.fail()
    assert site.ends == 1
    [message] = site.events
    assert f"kernel module {NEW}, installed library {NEW}" in message
    assert f"library of this process {old} (its file was replaced since)" in message
    site.fail()
    assert site.ends == 1


def test_modules_that_were_not_reloaded_end_nothing_as_a_new_process_would_not_help(
    site: Site,
) -> None:
    site.library.note_answer()
    site.machine.install_driver_files(NEW)
    site.begin()
    site.fail()
    assert site.ends == 0
    text = site.library.explain(translate("nvmlInit", MISMATCH))
    assert f"library of this process {NEW}" in text


def keep_showing_the_old_file(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container into which the file itself is mounted."""
    found = mapped_library()
    assert found is not None
    assert not found.deleted
    monkeypatch.setattr(driverlibrary, "mapped_library", lambda: found)
    monkeypatch.setattr(driverlibrary.Mapped, "identity", (1, 1))
    site.library.note_answer()


def test_where_a_mount_still_shows_the_old_file_the_versions_decide_and_only_once(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_showing_the_old_file(site, monkeypatch)
    site.machine.upgrade_driver(NEW)
    site.fail()
    assert site.ends == 1, "kubelet makes the container anew, and its mounts"
    site.begin()
    site.fail()
    assert site.ends == 1, "it did not help: it does not end over and over"
    # Once it has helped, the next upgrade counts again.
    site.begin()
    site.library.note_answer()
    site.begin()
    site.fail()
    assert site.ends == 2


def test_an_end_that_does_not_come_is_told_to_liveness(site: Site) -> None:
    site.library.note_answer()
    site.machine.upgrade_driver(NEW)
    site.fail()
    assert site.library.overdue() == ""
    site.now += times.END_OVERDUE_SECONDS
    assert "this process has not ended" in site.library.overdue()


def test_a_plugin_whose_end_hangs_is_not_alive(rig: Rig) -> None:
    assert rig.daemon is not None
    library = rig.daemon.library
    library._ended, library._why = -2 * times.END_OVERDUE_SECONDS, "the driver was exchanged"
    stuck = "end: the driver was exchanged; this process has not ended"
    assert stuck in rig.telemetry.probes.live.problems()
    rig.stop()
    assert rig.telemetry.probes.live.problems() == (stuck,)


def test_a_mismatch_without_a_newer_library_ends_as_the_message_says(rig: Rig) -> None:
    rig.stop()
    rig.machine.install_driver_files(NEW)
    rig.start(ready=False)
    text = rig.refused(rig.claim(SLICE))
    assert "LIB_RM_VERSION_MISMATCH" in text
    assert "reload the kernel module" in text
    assert rig.machine.clients() == [], "the plugin is not in the way"
    rig.machine.upgrade_driver(NEW)
    wait_for("readiness", lambda: rig.is_ready)
    assert rig.prepared(rig.claim(SLICE))


@contextmanager
def plugin(rig: Rig) -> Iterator[Process]:
    """The plugin as a process over the rig's machine."""
    hardware = str(rig.machine.directory)
    command = [sys.executable, "-m", "sim", "plugin", "--hardware", hardware, "--"]
    flags = ["--state-dir", str(rig.roots.state)]
    with running([*command, *arguments(rig), *flags], rig.folder) as process:
        wait_for("the socket", rig.registration_socket.exists, context=process.log.read_text)
        yield process


def ended(process: Process) -> None:
    wait_for("its end", lambda: process.process.poll() is not None, context=process.log.read_text)
    assert process.process.returncode == 0, process.log.read_text()


def replaced(rig: Rig) -> bool:
    found = rig.api.list(EVENTS).items
    about = [e for e in found if e["involvedObject"]["name"] == rig.node]
    return any(e["reason"] == "DriverLibraryReplaced" for e in about)


def test_a_drained_node_gets_a_new_driver_while_the_plugin_runs(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig(GpuSpec(A100))
    with plugin(rig) as process:
        wait_for("the MigNode", lambda: published(rig) == [""])
        drain(rig)
        wait_released(rig, 0)
        rig.machine.upgrade_driver(NEW)
        resume(rig)
        ended(process)
        assert replaced(rig)
    with plugin(rig):
        wait_for("the MigNode", lambda: published(rig) == [""])
        assert rig.mignode()["status"]["driverVersion"] == NEW
        assert rig.prepared(rig.claim(SLICE))


def published(rig: Rig) -> list[str]:
    """Reasons of the MigNode's GPUs, none before there is one."""
    try:
        return reasons(rig)
    except (KeyError, LookupError, RuntimeError):
        return []
