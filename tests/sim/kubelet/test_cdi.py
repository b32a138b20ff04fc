"""CDI specs as the stand-in for a container runtime reads them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dra.common.resources import Obj
from sim.kubelet.containers import container_view, read_spec, resolve
from sim.kubelet.plugins import ContainerError


def _write(path: Path, *names: str, **more: object) -> None:
    devices = [{"name": n, "containerEdits": {"env": [f"D_{n}=1"]}} for n in names]
    path.write_text(json.dumps({"cdiVersion": "0.6.0", "kind": "v.x/c", "devices": devices} | more))


def test_a_specs_own_edits_come_once_before_those_of_its_devices(tmp_path: Path) -> None:
    _write(tmp_path / "a.json", "x", "y", containerEdits={"env": ["COMMON=1"]})
    edits = resolve(tmp_path, ["v.x/c=x", "v.x/c=y"])
    assert [e["env"] for e in edits] == [["COMMON=1"], ["D_x=1"], ["D_y=1"]]


@pytest.mark.parametrize(
    "change",
    [
        {"cdiVersion": None},
        {"kind": "nothing"},
        {"devices": [{"name": "-x"}]},
        {"devices": [{"name": "x"}, {"name": "x"}]},
    ],
    ids=str,
)
def test_a_spec_that_breaks_the_rules_offers_nothing(tmp_path: Path, change: Obj) -> None:
    _write(tmp_path / "a.json", "x", **change)
    with pytest.raises(ValueError, match=r"cdiVersion|kind|device"):
        read_spec(tmp_path / "a.json")
    with pytest.raises(ContainerError, match="unresolvable"):
        resolve(tmp_path, ["v.x/c=x"])


def _view(edits: Obj) -> Obj:
    return container_view({"name": "main", "env": [{"name": "A", "value": "1"}]}, [], [edits])


def test_a_device_node_without_major_number_is_looked_up_on_the_host(tmp_path: Path) -> None:
    view = _view({"deviceNodes": [{"path": "/dev/zero-of-mine", "hostPath": "/dev/zero"}]})
    assert view["devices"][0] == {
        "path": "/dev/zero-of-mine",
        "type": "c",
        "major": 1,
        "minor": 5,
        "permissions": "rwm",
    }
    with pytest.raises(ContainerError, match="failed to stat CDI host device"):
        _view({"deviceNodes": [{"path": str(tmp_path / "missing")}]})
    (tmp_path / "plain").touch()
    with pytest.raises(ContainerError, match="no device node"):
        _view({"deviceNodes": [{"path": str(tmp_path / "plain"), "type": "c"}]})


def test_a_mount_whose_source_is_missing_fails_the_container(tmp_path: Path) -> None:
    mount = {"hostPath": str(tmp_path), "containerPath": "/x", "options": ["ro"]}
    assert _view({"mounts": [mount]})["mounts"][0]["options"] == ["ro"]
    with pytest.raises(ContainerError, match="error mounting"):
        _view({"mounts": [mount | {"hostPath": str(tmp_path / "missing")}]})
