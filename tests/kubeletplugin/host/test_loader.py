"""Real loaders of both families find the driver wherever the host keeps it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kubeletplugin.host.layouts import VERSION, find, library, program
from tests.kubeletplugin.host.rootfs import (
    MULTIARCH,
    ROOTS,
    Image,
    compiled,
    make_image,
    private_mounts,
)

DRIVER = 12080
PLACES = {
    "Debian-like host": ("/", f"usr/lib/{MULTIARCH}"),
    "Red-Hat-like host": ("/", "usr/lib64"),
    "driver container, Red-Hat-like": ("/run/nvidia/driver", "usr/lib64"),
    "driver container, Debian-like": ("/run/nvidia/driver", f"usr/lib/{MULTIARCH}"),
}
NAMES = ("libcuda.so.1", "libcuda.so")
MakeImage = Callable[[str], Image]


@pytest.fixture
def image(tmp_path: Path) -> MakeImage:
    private_mounts()
    return lambda kind: make_image(tmp_path / "container.image", kind)


def cuda(path: Path, version: int = DRIVER) -> None:
    """A libcuda that does nothing but say its version."""
    source = f"int cuDriverGetVersion(void) {{ return {version}; }}"
    compiled(source, path, "-shared", "-fPIC", "-nostdlib", "-Wl,-soname,libcuda.so.1")


def install(host: Path, driver: str, directory: str) -> None:
    folder = host / driver.lstrip("/") / directory
    cuda(folder / f"libcuda.so.{VERSION}")
    library(folder / "libnvidia-nvvm70.so.4", "libnvidia-nvvm70.so.4")
    program(host / driver.lstrip("/") / "usr/bin/nvidia-smi")


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
@pytest.mark.parametrize("kind", ROOTS)
def test_a_container_of_any_image_finds_the_driver(
    tmp_path: Path, image: MakeImage, kind: str, place: tuple[str, str]
) -> None:
    host = tmp_path / "host"
    driver, directory = place
    install(host, driver, directory)
    mounts = find(host, driver, hook="never").common.mounts
    said = image(kind).run(mounts, host, "/probe", *NAMES)
    assert said.splitlines() == [f"{name} {DRIVER}" for name in NAMES]


@pytest.mark.parametrize("kind", ROOTS)
def test_an_image_that_brings_a_driver_s_library_gets_the_node_s(
    tmp_path: Path, image: MakeImage, kind: str
) -> None:
    host = tmp_path / "host"
    install(host, "/", f"usr/lib/{MULTIARCH}")
    mounts = find(host, hook="never").common.mounts
    made = image(kind)
    folder = f"usr/lib/{MULTIARCH}" if kind == "Debian-like" else "usr/lib64"
    cuda(made.folder / folder / "libcuda.so.535.1.2", version=12020)
    for link, target in (("libcuda.so.1", "libcuda.so.535.1.2"), ("libcuda.so", "libcuda.so.1")):
        (made.folder / folder / link).symlink_to(target)
    assert made.run((), host, "/probe", *NAMES).splitlines() == [f"{n} 12020" for n in NAMES]
    said = made.run(mounts, host, "/probe", *NAMES)
    assert said.splitlines() == [f"{name} {DRIVER}" for name in NAMES]
