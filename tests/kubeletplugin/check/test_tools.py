"""What a check does on a real node beside NVML, with a stub for libcuda and files for /proc."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kubeletplugin.check.errors import CheckError
from kubeletplugin.check.probes import attachprobe
from kubeletplugin.check.trying.realtools import RealTools
from kubeletplugin.check.trying.slices import best
from kubeletplugin.check.trying.tools import Place, run_probe
from kubeletplugin.check.trying.witnesses import Descriptor, Directory
from kubeletplugin.host.roots import Roots
from sim.nvml.files.host import CAPS_MAJOR, compute_instance_minor, gpu_instance_minor
from sim.nvml.machine import Machine
from tests.kubeletplugin.check.conftest import Node
from tests.kubeletplugin.check.test_settling import trial

# Writes down which device a program was given.
CUDA = """
#include <stdio.h>
#include <stdlib.h>
int cuInit(unsigned flags) {
    FILE *f = fopen(getenv("MARKER"), "w");
    if (f) { fprintf(f, "%s", getenv("CUDA_VISIBLE_DEVICES")); fclose(f); }
    return atoi(getenv("ANSWER"));
}
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuCtxCreate_v2(void **context, unsigned flags, int device) { *context = 0; return 0; }
"""


def roots(host: Path) -> Roots:
    return Roots(host, Path("/"), host / "cdi", host / "kubelet", host / "state")


@pytest.fixture
def libcuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    source, library = tmp_path / "cuda.c", tmp_path / "libcuda.so.1"
    source.write_text(CUDA)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    monkeypatch.setenv("MARKER", str(tmp_path / "device"))
    monkeypatch.setenv("ANSWER", "0")
    return library


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """Device nodes that were made, by name, major and minor: plain files in a folder."""
    nodes: list[tuple[str, int, int]] = []

    def mknod(path: Path, _mode: int, numbers: int) -> None:
        nodes.append((path.name, os.major(numbers), os.minor(numbers)))
        path.touch(exist_ok=False)

    monkeypatch.setattr(os, "mknod", mknod)
    return nodes


def slice_of(machine: Machine) -> Place:
    """A slice on a machine, with the host's files that belong to it."""
    made = machine.create_slice(0, "1g.5gb", start=2)
    assert made.compute_instance is not None
    return Place(made.gpu, 0, made.gpu_instance, made.compute_instance, made.uuid)


def test_a_program_holds_the_slice_that_it_was_given_until_it_is_ended(
    make_node: Callable[..., Node], tmp_path: Path, libcuda: Path, made: list[tuple[str, int, int]]
) -> None:
    machine = make_node().machine
    place, dev = slice_of(machine), tmp_path / "dev"
    dev.mkdir()
    tools = RealTools(roots(machine.host_root), libcuda, dev=dev)
    minors = [
        gpu_instance_minor(0, place.gi_id),
        compute_instance_minor(0, place.gi_id, place.ci_id),
    ]
    with tools.hold(place) as pid:
        assert (tmp_path / "device").read_text() == place.uuid
        assert Path(f"/proc/{pid}").exists()
        assert made == [(f"nvidia-cap{minor}", CAPS_MAJOR, minor) for minor in minors]
        (dev / f"nvidia-caps/nvidia-cap{minors[0]}").unlink()
    assert not Path(f"/proc/{pid}").exists()
    assert list((dev / "nvidia-caps").iterdir()) == []
    (dev / f"nvidia-caps/nvidia-cap{minors[0]}").touch()  # as nvidia-modprobe has left it
    with tools.hold(place):
        assert len(made) == 3
    assert [p.name for p in (dev / "nvidia-caps").iterdir()] == [f"nvidia-cap{minors[0]}"]


def test_a_program_that_cannot_use_the_slice_says_which_call_failed(
    make_node: Callable[..., Node],
    tmp_path: Path,
    libcuda: Path,
    made: list[tuple[str, int, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ANSWER", "100")
    machine = make_node().machine
    place = slice_of(machine)
    (tmp_path / "dev").mkdir()

    def refusal(library: Path | None, where: Place = place) -> str:
        tools = RealTools(roots(machine.host_root), library, dev=tmp_path / "dev")
        with pytest.raises(CheckError) as caught, tools.hold(where):
            pass
        assert list((tmp_path / "dev").glob("*/*")) == []
        return str(caught.value)

    assert "cuInit answers 100" in refusal(libcuda)
    assert "cannot be loaded" in refusal(tmp_path / "nothing")
    assert "not found" in refusal(None)
    assert "cannot read MIG capability" in refusal(libcuda, replace(place, gi_id=3))


def test_a_plugin_lets_go_when_it_has_no_device_file_open_and_is_not_believed_unseen(
    tmp_path: Path,
) -> None:
    tools = RealTools(roots(tmp_path), None)
    process = tmp_path / "proc/4711"
    (process / "fd").mkdir(parents=True)
    (process / "cmdline").write_bytes(b"/bin/sh\0")
    assert not tools.lets_go()
    (process / "cmdline").write_bytes(b"python\0-m\0kubeletplugin\0--node-name=n\0")
    (process / "fd/3").symlink_to("/dev/null")
    assert tools.lets_go()
    (process / "fd/4").symlink_to("/dev/nvidia0")
    assert not tools.lets_go()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["sh", "-c", "echo end"], "end"),
        (["sh", "-c", "exit 3"], "open: the probe ended with 3"),
        (["/nonexistent"], "open: [Errno 2] No such file or directory: '/nonexistent'"),
    ],
)
def test_a_probe_says_one_word_or_why_there_is_none(command: list[str], said: str) -> None:
    assert run_probe(command) == said


def test_the_probes_say_that_there_is_no_library(tmp_path: Path) -> None:
    tools = RealTools(roots(tmp_path), None)
    assert tools.attach().startswith("open: ")
    assert tools.shutdown().startswith("open: ")
    assert attachprobe.device_files() == []


def test_witnesses_say_what_they_see_of_an_entry_that_goes_or_stays(tmp_path: Path) -> None:
    folder = tmp_path / "ci0"
    folder.mkdir()
    (folder / "access").write_text("DeviceFileMinor: 4\n")
    stays, goes = Directory(folder), Directory(folder)
    assert stays.tell() == "stays"
    descriptor = Descriptor(folder)
    shutil.rmtree(folder)
    assert goes.tell() == "goes"
    assert descriptor.read() == "readable"  # a plain file, unlike an entry of /proc
    folder.mkdir()
    (folder / "access").symlink_to("/proc/self/mem")  # no page is mapped at its beginning
    assert Descriptor(folder).read() == "EIO"
    shutil.rmtree(folder)
    assert Descriptor(folder).read().startswith("open: there is no ")
    assert Directory(folder).tell().startswith("open: ")


def test_the_best_is_what_delivers_most() -> None:
    made = [
        trial(enum=0, multiprocessors=16),
        trial(enum=7, multiprocessors=26),
        trial(enum=8, multiprocessors=-1, refused="NOT_SUPPORTED"),
    ]
    assert best(made, "1g.10gb") == 7
    assert best(made, "2g.20gb") == -1
