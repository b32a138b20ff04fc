"""The spec that claims have in common: what is in it, and who may replace it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from cdi.store import SpecStore
from dra.common.resources import Obj
from kubeletplugin.errors import HostError
from kubeletplugin.host.driverfiles import COMPUTE, VIDEO, DriverSpec, Needs
from kubeletplugin.host.nodes import control_nodes
from tests.kubeletplugin.host.layouts import VERSION, find, install, kernel, library, roots

DRIVER = "mig.dra.dev"
CONTROL = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]


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

    def written(self) -> Obj:
        found: Obj = yaml.safe_load(self.store.common_path.read_text())
        return found

    def _find(self) -> Needs:
        if self.now is None:
            raise HostError("no libcuda")
        return self.now


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_it_has_libraries_and_control_nodes_and_opens_no_gpu(bench: Bench) -> None:
    library(bench.folder / f"libnvcuvid.so.{VERSION}", "libnvcuvid.so.1")
    spec = bench.spec.build(bench.needs())
    assert spec.kind == "k8s.mig.dra.dev/driver"
    assert [node.path for node in spec.common.nodes] == CONTROL
    assert "/usr/lib64/libcuda.so.1" in {m.container_path for m in spec.common.mounts}
    by_name = {device.name: device.edits for device in spec.devices}
    assert [*by_name] == [COMPUTE, VIDEO]
    assert not any(edits.nodes for edits in by_name.values())
    assert by_name[COMPUTE].mounts == ()
    video = {m.container_path for m in by_name[VIDEO].mounts}
    assert video == {
        f"{directory}/libnvcuvid.so.1" for directory in ("/usr/lib64", "/usr/lib/x86_64-linux-gnu")
    }
    assert bench.spec.qualified((COMPUTE, VIDEO)) == (
        "k8s.mig.dra.dev/driver=compute",
        "k8s.mig.dra.dev/driver=video",
    )


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


def test_who_looked_before_the_driver_changed_does_not_bring_back_the_old_files(
    bench: Bench,
) -> None:
    old = bench.now
    bench.spec.ensure(old)
    bench.folder.rename(bench.host / "usr/lib64")
    bench.now = bench.needs()
    bench.spec.ensure(bench.now)
    new = bench.store.common_path.read_bytes()
    assert str(bench.host / "usr/lib64/libcuda").removeprefix(str(bench.host)).encode() in new
    bench.spec.ensure(old)
    assert bench.store.common_path.read_bytes() == new


def test_while_files_are_gone_it_stays_as_it_is(bench: Bench) -> None:
    bench.spec.ensure(bench.now)
    whole = bench.store.common_path.read_bytes()
    other = replace(bench.now, files=replace(bench.now.files, opencl="/etc/OpenCL/vendors/x.icd"))
    bench.now = None  # type: ignore[assignment]
    with pytest.raises(HostError, match="no libcuda"):
        bench.spec.ensure(other)
    assert bench.store.common_path.read_bytes() == whole
