"""The driver's libraries among a host's files, and the names under which containers get them."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from kubeletplugin.host.libraries import AARCH64, read_library, this_architecture
from kubeletplugin.host.roots import inside
from sim.nvml.driverfiles import empty_library
from tests.kubeletplugin.host.layouts import PLACES, VERSION, find, install, library, mounted

MULTIARCH = this_architecture().multiarch
DIRECTORIES = ("/usr/lib64", f"/usr/lib/{MULTIARCH}")
NAMES = (
    "libcuda.so.1",
    "libcuda.so",
    "libnvidia-ml.so.1",
    "libnvidia-nvvm.so.4",
    "libnvidia-nvvm70.so.4",
    "libnvidia-ptxjitcompiler.so.1",
    f"libnvidia-gpucomp.so.{VERSION}",
)


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
def test_every_loader_finds_every_library_wherever_the_host_keeps_it(
    tmp_path: Path, place: str
) -> None:
    install(tmp_path, place)
    found = mounted(find(tmp_path))
    libraries = {path: source for path, source in found.items() if "/lib" in path}
    assert set(libraries) == {f"{d}/{name}" for d in DIRECTORIES for name in NAMES}
    for directory in DIRECTORIES:
        assert found[f"{directory}/libcuda.so.1"] == f"/{place}/libcuda.so.{VERSION}"
        assert found[f"{directory}/libnvidia-nvvm70.so.4"] == f"/{place}/libnvidia-nvvm70.so.4"


def test_libraries_of_other_processors_and_versions_and_what_is_none_are_left_out(
    tmp_path: Path,
) -> None:
    folder = install(tmp_path, "usr/lib64")
    # Where Red-Hat-like systems put the libraries for 32-bit programs.
    narrow = bytearray(empty_library("libnvidia-fast.so.1"))
    narrow[4] = 1
    (tmp_path / "usr/lib").mkdir()
    (tmp_path / f"usr/lib/libnvidia-fast.so.{VERSION}").write_bytes(narrow)
    other = bytearray(empty_library("libnvidia-arm.so.1"))
    struct.pack_into("<H", other, 18, AARCH64 if this_architecture().machine != AARCH64 else 62)
    (folder / f"libnvidia-arm.so.{VERSION}").write_bytes(other)
    (folder / f"libnvidia-text.so.{VERSION}").write_text("not a library")
    library(folder / "libnvidia-old.so.550.1.2", "libnvidia-old.so.1")
    found = mounted(find(tmp_path))
    names = {Path(path).name for path in found if "/lib" in path}
    assert names == set(NAMES)


def test_directories_of_the_loader_s_cache_are_looked_through_after_the_others(
    tmp_path: Path,
) -> None:
    install(tmp_path, "opt/nvidia/lib")
    library(tmp_path / f"usr/lib64/libnvidia-ml.so.{VERSION}", "libnvidia-ml.so.1")
    cuda = f"/opt/nvidia/lib/libcuda.so.{VERSION}"
    for old in (False, True):
        (tmp_path / "etc").mkdir(exist_ok=True)
        (tmp_path / "etc/ld.so.cache").write_bytes(cache(["/lib/libc.so.6", cuda], old=old))
        found = mounted(find(tmp_path))
        assert found["/usr/lib64/libcuda.so.1"] == cuda
        assert found["/usr/lib64/libnvidia-ml.so.1"] == f"/usr/lib64/libnvidia-ml.so.{VERSION}"


def cache(paths: list[str], *, old: bool) -> bytes:
    """A loader cache with these paths, behind one of the old form if wanted."""
    entries, strings = b"", b""
    start = 48 + 24 * len(paths)
    for path in paths:
        offset = start + len(strings)
        strings += path.encode() + b"\0"
        entries += struct.pack("<iIIIQ", 0x0303, offset, offset, 0, 0)
    new = b"glibc-ld.so.cache1.1" + struct.pack("<II20x", len(paths), len(strings))
    before = b"ld.so-1.7.0\0" + struct.pack("<I", 1) + bytes(12) + bytes(4) if old else b""
    return before + new + entries + strings


def test_a_damaged_library_is_none(tmp_path: Path) -> None:
    whole = empty_library("libcuda.so.1")
    for length in range(len(whole)):
        (tmp_path / "lib").write_bytes(whole[:length])
        read = read_library(tmp_path / "lib")
        assert read is None or "libcuda.so.1".startswith(read[1])
    assert read_library(tmp_path / "none") is None


def test_links_of_the_host_are_followed_in_the_host(tmp_path: Path) -> None:
    host = tmp_path / "host"
    install(host, "real/usr/lib64")
    (host / "usr").mkdir(exist_ok=True)
    (host / "usr/lib64").symlink_to("/real/usr/lib64")
    (host / "lib64").symlink_to("usr/lib64")
    (host / "loop").symlink_to("/loop")
    assert inside(host, "/lib64/x") == host / "real/usr/lib64/x"
    assert inside(host, "/usr/../../../lib64") == host / "real/usr/lib64"
    assert inside(host, "/loop/x").is_relative_to(host)
    # The same directory counts once, and no link is left to a runtime that sees another root.
    path = f"/real/usr/lib64/libcuda.so.{VERSION}"
    assert mounted(find(host))["/usr/lib64/libcuda.so.1"] == path


def test_arm_machines_have_a_directory_of_their_own() -> None:
    found = this_architecture("aarch64").container_directories
    assert found == ("/usr/lib64", "/usr/lib/aarch64-linux-gnu")
