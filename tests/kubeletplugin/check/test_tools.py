"""What a check does on a real node beside NVML, with a stub for libcuda and files for /proc."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from kubeletplugin.check import attachprobe
from kubeletplugin.check.errors import CheckError
from kubeletplugin.check.slices import best
from kubeletplugin.check.tools import Place, RealTools, run_probe
from kubeletplugin.check.witnesses import Descriptor, Directory
from kubeletplugin.roots import Roots
from tests.kubeletplugin.check.test_settling import trial

PLACE = Place("GPU-1", 7, 0, "MIG-1")
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


def test_a_program_holds_the_slice_that_it_was_given_until_it_is_ended(
    tmp_path: Path, libcuda: Path
) -> None:
    with RealTools(roots(tmp_path), libcuda).hold(PLACE) as pid:
        assert (tmp_path / "device").read_text() == "MIG-1"
        assert Path(f"/proc/{pid}").exists()
    assert not Path(f"/proc/{pid}").exists()


def test_a_program_that_cannot_use_the_slice_says_which_call_failed(
    tmp_path: Path, libcuda: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANSWER", "100")
    with (
        pytest.raises(CheckError, match="cuInit answers 100"),
        RealTools(roots(tmp_path), libcuda).hold(PLACE),
    ):
        pass
    with (
        pytest.raises(CheckError, match="cannot be loaded"),
        RealTools(roots(tmp_path), tmp_path / "nothing").hold(PLACE),
    ):
        pass
    with pytest.raises(CheckError, match="not found"), RealTools(roots(tmp_path), None).hold(PLACE):
        pass


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
