"""Where the driver's files are, with and without a driver container."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubeletplugin.host.roots import Roots

CONTAINER = Path("/run/nvidia/driver")


def roots(host: Path, *, container: Path | None) -> Roots:
    own = {"cdi": host / "cdi", "kubelet": host / "k", "state": host / "s"}
    return Roots(host=host, driver=Path("/"), driver_container=container, **own)


def test_a_driver_container_counts_while_it_is_there(tmp_path: Path) -> None:
    """The operator unmounts it for an upgrade, and leaves the empty directory."""
    found = roots(tmp_path, container=CONTAINER)
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
    assert roots(tmp_path, container=container).driver_root == expected
