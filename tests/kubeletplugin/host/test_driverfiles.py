"""Edits by the kind of a container's device, and when files are looked for anew."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cdi.store import SpecStore
from kubeletplugin.errors import HostError
from kubeletplugin.host.driverfiles import DriverSearch, DriverSpec, Needs
from kubeletplugin.host.nodes import control_nodes
from tests.kubeletplugin.host.layouts import (
    VERSION,
    find,
    install,
    kernel,
    library,
    mounted,
    program,
    roots,
)

VIDEO = {
    "libnvcuvid.so": "libnvcuvid.so.1",
    "libnvidia-encode.so": "libnvidia-encode.so.1",
    "libnvidia-opticalflow.so": "libnvidia-opticalflow.so.1",
}


GRAPHICS = {
    "libEGL_nvidia.so": "libEGL_nvidia.so.0",
    "libGLX_nvidia.so": "libGLX_nvidia.so.0",
    "libnvidia-glcore.so": f"libnvidia-glcore.so.{VERSION}",
    "libnvidia-vulkan-producer.so": "libnvidia-vulkan-producer.so",
}


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A host with everything that a driver may bring."""
    folder = install(tmp_path)
    for name, soname in {**VIDEO, **GRAPHICS}.items():
        library(folder / f"{name}.{VERSION}", soname)
    library(folder / f"vdpau/libvdpau_nvidia.so.{VERSION}", "libvdpau_nvidia.so.1")
    library(folder / f"libnvidia-allocator.so.{VERSION}", "libnvidia-allocator.so.1")
    library(folder / "libnvidia-egl-gbm.so.1.1.2", "libnvidia-egl-gbm.so.1")
    library(folder / f"libnvidia-gtk3.so.{VERSION}", f"libnvidia-gtk3.so.{VERSION}")
    library(folder / f"nvidia/xorg/libglxserver_nvidia.so.{VERSION}", "libglxserver_nvidia.so")
    library(folder / "nvidia/xorg/nvidia_drv.so", "nvidia_drv.so")
    for name in ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server", "nvidia-persistenced"):
        program(tmp_path / "usr/bin" / name)
    for name in (
        "etc/OpenCL/vendors/nvidia.icd",
        "usr/share/glvnd/egl_vendor.d/10_nvidia.json",
        "usr/share/nvidia/nvoptix.bin",
        "usr/share/vulkan/icd.d/nvidia_icd.x86_64.json",
        "etc/vulkan/implicit_layer.d/nvidia_layers.json",
        "tmp/nvidia-mps/control",
    ):
        program(tmp_path / name)
    return tmp_path


def names(mounts: object) -> set[str]:
    return {Path(m.container_path).name for m in mounts}  # type: ignore[attr-defined]


def test_every_container_gets_compute_and_utilities_and_nothing_else(host: Path) -> None:
    edits = find(host).common
    got = names(edits.mounts)
    assert {"libcuda.so.1", "libcuda.so", "nvidia.icd", "nvidia-smi"} <= got
    assert {"nvidia-cuda-mps-control", "nvidia-cuda-mps-server"} <= got
    assert not {*VIDEO.values(), *GRAPHICS.values(), "libvdpau_nvidia.so.1"} & got
    assert not {"nvidia-persistenced", "control", f"libnvidia-gtk3.so.{VERSION}"} & got
    assert edits.env == ("NVIDIA_VISIBLE_DEVICES=void",)
    assert mounted(find(host))["/etc/OpenCL/vendors/nvidia.icd"] == "/etc/OpenCL/vendors/nvidia.icd"


def test_a_directory_of_programs_that_is_named_goes_first(host: Path) -> None:
    program(host / "opt/tools/nvidia-smi")
    search = DriverSearch(roots(host), programs=("opt/none", "opt/tools"))
    assert search.find(VERSION).programs["nvidia-smi"] == "/opt/tools/nvidia-smi"
    assert search.find(VERSION).lacking == ""


def test_a_program_goes_before_a_script_that_starts_it(tmp_path: Path) -> None:
    """The script is in /usr/bin, the program beside the libraries that the loader's cache names."""
    install(tmp_path, "opt/nvidia/lib64")
    (tmp_path / "usr/lib64").mkdir()
    real = tmp_path / "opt/nvidia/bin/nvidia-smi"
    search = DriverSearch(roots(tmp_path), directories=("usr/lib64", "opt/nvidia/lib64"))
    assert search.find(VERSION).programs["nvidia-smi"] == "/usr/bin/nvidia-smi"
    library(real, "")
    assert search.find(VERSION).programs["nvidia-smi"] == "/opt/nvidia/bin/nvidia-smi"
    program(tmp_path / "opt/tools/nvidia-smi")
    named = DriverSearch(roots(tmp_path), directories=search.directories, programs=("opt/tools",))
    assert named.find(VERSION).programs["nvidia-smi"] == "/opt/tools/nvidia-smi"


STORE = f"store/abc-nvidia-{VERSION}/lib"


@pytest.mark.parametrize("driver", ["/", "/run/nvidia/driver", "/run/opengl-driver"])
@pytest.mark.parametrize("form", ["absolute", "relative", "directory"])
def test_links_are_followed_as_the_host_would(tmp_path: Path, driver: str, form: str) -> None:
    """A driver container's links are of its own root; those of a directory are the host's."""
    is_container = driver == "/run/nvidia/driver"
    top = tmp_path / driver.lstrip("/")
    kept = (top if is_container else tmp_path) / STORE
    install(top, "../kept").rename(tmp_path / "kept")
    kept.parent.mkdir(parents=True)
    (tmp_path / "kept").rename(kept)
    folder = top / "lib64"
    (top / "usr").rename(top / "aside")
    (top / "usr/bin").mkdir(parents=True)
    smi = "/aside/bin/nvidia-smi" if is_container else f"{driver}/aside/bin/nvidia-smi"
    (top / "usr/bin/nvidia-smi").symlink_to(smi)
    if form == "directory":
        folder.symlink_to(f"/{STORE}")
    else:
        folder.mkdir()
        up = "../" if is_container or driver == "/" else "../../../"
        for file in kept.iterdir():
            start = "/" if form == "absolute" else up
            (folder / file.name).symlink_to(f"{start}{STORE}/{file.name}")
    files = find(tmp_path, driver)
    assert files.cuda is not None
    assert files.cuda.soname == "libcuda.so.1"
    base = driver if is_container else ""
    assert files.cuda.path == f"{base}/{STORE}/libcuda.so.{VERSION}"
    assert mounted(files)["/usr/lib64/libcuda.so.1"] == files.cuda.path
    assert files.programs["nvidia-smi"] == f"{base}{smi}".replace("//", "/")


def test_graphics_gets_libraries_and_the_files_that_its_loaders_read(host: Path) -> None:
    mounts = {m.container_path: m.host_path for m in find(host).graphics().mounts}
    assert {*GRAPHICS.values(), "libGLX_indirect.so.0", "libnvidia-egl-gbm.so.1"} <= {
        Path(path).name for path in mounts
    }
    place = "/usr/lib/x86_64-linux-gnu"
    assert mounts["/usr/share/glvnd/egl_vendor.d/10_nvidia.json"].startswith("/usr/share/glvnd")
    assert mounts["/usr/share/nvidia/nvoptix.bin"] == "/usr/share/nvidia/nvoptix.bin"
    layers = "/etc/vulkan/implicit_layer.d/nvidia_layers.json"
    assert mounts[layers] == layers
    assert mounts["/usr/lib64/gbm/nvidia-drm_gbm.so"] == f"{place}/libnvidia-allocator.so.{VERSION}"
    assert mounts[f"{place}/nvidia/xorg/libglxserver_nvidia.so"].endswith(f".so.{VERSION}")
    assert mounts[f"{place}/nvidia/xorg/nvidia_drv.so"] == f"{place}/nvidia/xorg/nvidia_drv.so"


def test_vulkan_s_file_is_that_of_the_node_s_processor(host: Path) -> None:
    icd = "/etc/vulkan/icd.d/nvidia_icd.x86_64.json"
    mounts = {m.container_path: m.host_path for m in find(host).graphics().mounts}
    assert mounts[icd] == "/usr/share/vulkan/icd.d/nvidia_icd.x86_64.json"


# -- the spec that claims have in common: what is in it, and who may replace it


DRIVER = "mig.dra.dev"


class Bench:
    """A node with a driver; ``now`` is what a look finds."""

    def __init__(self, host: Path) -> None:
        self.host = kernel(host)
        self.folder = install(host)
        self.store = SpecStore(host / "cdi", DRIVER)
        self.now = self.needs()
        self.spec = DriverSpec(DRIVER, self.store, self._find)

    def needs(self) -> Needs:
        return Needs(find(self.host), control_nodes(roots(self.host)), roots(self.host))

    def _find(self) -> Needs:
        if self.now is None:
            raise HostError("no libcuda")
        return self.now


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.parametrize("damage", ["", "{", "kind: k8s.mig.dra.dev/driver", None])
def test_what_is_damaged_or_gone_is_written_again(bench: Bench, damage: str | None) -> None:
    bench.spec.ensure(bench.now)
    whole = bench.store.common_path.read_bytes()
    bench.store.common_path.unlink()
    if damage is not None:
        bench.store.common_path.write_text(damage)
    bench.spec.ensure(bench.now)
    assert bench.store.common_path.read_bytes() == whole


def test_a_link_in_its_place_is_replaced_and_not_followed(bench: Bench, tmp_path: Path) -> None:
    bench.spec.ensure(bench.now)
    same = tmp_path / "same"
    bench.store.common_path.rename(same)
    bench.store.common_path.symlink_to(same)
    bench.spec.ensure(bench.now)
    assert not bench.store.common_path.is_symlink()


def test_while_files_are_gone_it_stays_as_it_is(bench: Bench) -> None:
    bench.spec.ensure(bench.now)
    whole = bench.store.common_path.read_bytes()
    other = replace(bench.now, files=replace(bench.now.files, opencl="/etc/OpenCL/vendors/x.icd"))
    bench.now = None  # type: ignore[assignment]
    with pytest.raises(HostError, match="no libcuda"):
        bench.spec.ensure(other)
    assert bench.store.common_path.read_bytes() == whole
