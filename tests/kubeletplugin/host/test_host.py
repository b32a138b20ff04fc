"""What is read from the host's files: names of GPUs, capabilities, roots."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kubeletplugin.errors import HostError
from kubeletplugin.gpus.hardware import assign_names
from kubeletplugin.host.nodes import instance_capabilities
from tests.kubeletplugin.host.layouts import DEVICES, kernel, roots

CONTAINER = Path("/run/nvidia/driver")


@pytest.fixture
def host(tmp_path: Path) -> Path:
    return kernel(tmp_path / "host")


# -- names


def test_a_new_gpu_never_gets_the_name_of_one_that_is_away(tmp_path: Path) -> None:
    path = tmp_path / "gpus.json"
    assign_names(path, [("GPU-a", 0), ("GPU-b", 1)], hints={})
    assert assign_names(path, [("GPU-new", 0), ("GPU-b", 1)], hints={}) == {
        "GPU-new": 2,
        "GPU-b": 1,
    }
    assert assign_names(path, [("GPU-a", 0)], hints={}) == {"GPU-a": 0}


def test_a_new_gpu_does_not_take_the_minor_of_another_new_one(tmp_path: Path) -> None:
    path = tmp_path / "gpus.json"
    assign_names(path, [("GPU-a", 0)], hints={})
    found = assign_names(path, [("GPU-x", 0), ("GPU-y", 1)], hints={})
    assert found == {"GPU-x": 2, "GPU-y": 1}


@pytest.mark.parametrize("damage", ["", "[]", '{"gpus": {"GPU-a": 0, "GPU-b": 0}}', '{"gpus": 3}'])
def test_lost_names_come_back_from_the_devices_that_are_prepared(
    tmp_path: Path, damage: str
) -> None:
    path = tmp_path / "gpus.json"
    path.write_text(damage)
    found = assign_names(path, [("GPU-a", 0), ("GPU-b", 1)], hints={"GPU-a": 5})
    assert found == {"GPU-a": 5, "GPU-b": 1}
    assert json.loads(path.read_text())["gpus"] == {"GPU-a": 5, "GPU-b": 1}


def test_names_that_cannot_be_kept_are_not_given(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HostError, match="cannot write the GPU names"):
        assign_names(tmp_path / "file/gpus.json", [("GPU-a", 0)], hints={})


# -- capabilities


def write_access(host: Path, name: str, content: str) -> None:
    path = host / "proc/driver/nvidia/capabilities/gpu2/mig" / name / "access"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def test_a_capability_that_is_missing_or_not_understood_names_its_file(host: Path) -> None:
    with pytest.raises(HostError, match=r"gpu2/mig/gi3/access"):
        instance_capabilities(roots(host), gpu_minor=2, gi_id=3, ci_id=0)
    write_access(host, "gi3", "what is this")
    with pytest.raises(HostError, match=r"gi3/access is not understood: 'what is this'"):
        instance_capabilities(roots(host), gpu_minor=2, gi_id=3, ci_id=0)


def test_a_driver_without_capabilities_is_told(host: Path) -> None:
    (host / "proc/devices").write_text(DEVICES.replace("237 nvidia-caps\n", ""))
    with pytest.raises(HostError, match="has no nvidia-caps"):
        instance_capabilities(roots(host), gpu_minor=0, gi_id=0, ci_id=0)


# -- roots


def test_a_driver_container_counts_while_it_is_there(tmp_path: Path) -> None:
    """The operator unmounts it for an upgrade, and leaves the empty directory."""
    found = replace(roots(tmp_path), driver_container=CONTAINER)
    seen = tmp_path / "run/nvidia/driver"
    assert (found.driver_root, found.driver_seen) == (Path("/"), tmp_path)
    seen.mkdir(parents=True)
    assert (found.driver_root, found.driver_seen) == (Path("/"), tmp_path)
    (seen / "usr").mkdir()
    assert (found.driver_root, found.driver_seen) == (CONTAINER, seen)
    (seen / "usr").rmdir()
    assert found.driver_root == Path("/")


@pytest.mark.parametrize("container", [None, CONTAINER])
def test_the_root_that_was_named_counts_alone(tmp_path: Path, container: Path | None) -> None:
    (tmp_path / "run/nvidia/driver/usr").mkdir(parents=True)
    expected = CONTAINER if container else Path("/")
    assert replace(roots(tmp_path), driver_container=container).driver_root == expected
