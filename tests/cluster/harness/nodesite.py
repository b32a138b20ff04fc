"""Control plane with one node whose kubelet runs pods, and with the driver on both."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from hack.cluster import controlplane
from hack.cluster.api import Api
from hack.cluster.binaries import NODE, Binaries
from hack.cluster.controlplane import ControlPlane, Setup
from hack.cluster.kubelet import KubeletNode
from sim.nvml.machine import Machine
from sim.processes import wait_for
from tests.cluster.harness.daemons import Driver, registrations
from tests.cluster.harness.ground import make_namespace, serve_mignodes
from tests.cluster.harness.workload import Workload


@dataclass
class NodeSite:
    """The parts of it; ``machine`` is the node's simulated hardware."""

    api: Api
    driver: Driver
    machine: Machine
    workload: Workload
    kubelet: KubeletNode

    def told(self, name: str) -> set[str]:
        """Reasons of the events of a pod."""
        events = self.api.list("Event")
        return {e["reason"] for e in events if e["involvedObject"]["name"] == name}


@contextmanager
def running_node(
    binaries: Binaries,
    home: Path,
    *,
    name: str,
    gpus: Sequence[str],
    options: Sequence[str] = (),
    mig: bool = True,
    setup: Setup | None = None,
) -> Iterator[NodeSite]:
    """Start them in ``home``, which is made if it is missing; ``options`` are the plugin's.

    The control plane's own folder is ``home/cp``. Skips the test where a kubelet cannot run.
    """
    if reason := binaries.missing(NODE):
        pytest.skip(reason)
    if os.geteuid() != 0:
        pytest.skip("a kubelet needs root")
    folders = {each: home / each for each in ("cp", "d", "n", "shown")}
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    users = (controlplane.MIG_CONTROLLER, controlplane.MIG_PLUGIN, controlplane.node_user(name))
    with (
        ControlPlane(binaries, folders["cp"], users=users, setup=setup or Setup()) as plane,
        KubeletNode(
            binaries, plane, name=name, root=folders["n"], shown=folders["shown"]
        ) as kubelet,
    ):
        make_namespace(plane.api)
        serve_mignodes(plane.api)
        driver = Driver(plane, folders["d"])
        driver.add_node(
            name,
            *options,
            gpus=tuple(gpus),
            kubelet_root=kubelet.kubelet_root,
            cdi_root=kubelet.cdi_root,
            mig=mig,
        )
        with driver:
            wait_for("registration", lambda: registrations(driver.plugins[name]))
            workload = Workload(plane.api, tails=lambda: f"{driver.tails()}\n{kubelet.tails()}")
            machine = Machine(driver.hardware[name].state)
            yield NodeSite(plane.api, driver, machine, workload, kubelet)
