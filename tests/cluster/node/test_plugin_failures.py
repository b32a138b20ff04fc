"""The plugin is away or is updated: pods keep their slices, and those of ended ones go."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hack.cluster.kubelet import KubeletNode
from sim.processes import Process, wait_for
from tests.cluster.harness.agreement import Agreement
from tests.cluster.harness.daemons import DRIVER, Driver, registrations
from tests.cluster.harness.workload import Workload

GONE_SECONDS = 90.0
"""Kubelet looks every 60 s for claims whose pods are gone; here it is not alone."""


def live_sockets(kubelet: KubeletNode) -> Iterator[str]:
    """Names of the driver's sockets on the node; fails for one that nobody serves."""
    directories = ("plugins_registry", f"plugins/{DRIVER}")
    for directory in directories:
        for path in (kubelet.kubelet_root / directory).glob("*.sock"):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(path))
            yield path.name


@pytest.fixture
def updated(driver: Driver, kubelet: KubeletNode) -> Iterator[Callable[[], Process]]:
    """Updates the plugin by one that is started before the old one ends; undone after the test."""
    name = kubelet.name

    def replace(old: Process, new: Process) -> Process:
        seen = registrations(new)
        new.start()
        driver.plugins[name] = new
        wait_for("new process", lambda: new.log.stat().st_size > 0, context=new.tail)
        old.stop(grace=30)
        wait_for("registration", lambda: registrations(new) > seen, context=driver.tails)
        return new

    old, new = driver.plugins[name], driver.successor(name, "--instance", "b" * 36)
    with contextlib.ExitStack() as stack:
        stack.callback(new.stop)

        def update() -> Process:
            stack.callback(lambda: replace(new, old))
            return replace(old, new)

        yield update


def test_an_update_of_the_plugin_leaves_pods_alone(
    *,
    agreement: Agreement,
    kubelet: KubeletNode,
    workload: Workload,
    where: dict[str, Any],
    updated: Callable[[], Process],
) -> None:
    claims = {"gpu": workload.template("update", device_class="mig-1g.5gb")}
    workload.run("before", claims=claims, **where)
    held = agreement.settle(context=workload.describe)
    container = workload.container("before")
    mark = len(agreement.machine.mutations())

    plugin = updated()
    assert agreement.settle(context=workload.describe) == held
    assert agreement.machine.mutations()[mark:] == []
    registry, service = live_sockets(kubelet)
    assert (registry.endswith("reg.sock"), service.startswith("dra")) == (True, True)

    workload.run("after", claims=claims, **where)
    now = agreement.settle(context=workload.describe)
    assert len(now) == 2
    assert held.items() <= now.items()
    assert workload.container("before") == container
    plugin.assert_running()
