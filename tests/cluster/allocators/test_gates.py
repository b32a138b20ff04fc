"""The driver on Kubernetes 1.34 to 1.36, and with everything optional switched off.

The one binary emulates older versions: it serves their API with their feature gates.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dra.common.resources import Obj
from hack.cluster import controlplane
from hack.cluster.api import Api, ApiError
from hack.cluster.binaries import Binaries
from hack.cluster.chart import REPOSITORY
from hack.cluster.controlplane import ControlPlane, Setup
from sim.processes import ClusterError, Process, wait_for
from tests.cluster.harness.audit import audit
from tests.cluster.harness.daemons import Driver
from tests.cluster.harness.ground import USERS, served_plane
from tests.cluster.harness.pods import add_fake_node, pod
from tests.cluster.harness.workload import SLEEPING, Workload

NODE = "sole"
GRACE: dict[str, Any] = {"terminationGracePeriodSeconds": 5}
"""Without it pods vanish behind the kubelet's back, which then looks for their claims later."""
ALL_OFF = dict.fromkeys(
    (
        "DRAConsumableCapacity",
        "DRADeviceBindingConditions",
        "DRADeviceTaints",
        "DRAExtendedResource",
        "DRAPartitionableDevices",
        "DRAPrioritizedList",
        "DRAResourceClaimDeviceStatus",
        "DRAResourceClaimGranularStatusAuthorization",
        "ResourceHealthStatus",
        "ResourceHealthStatusMessage",
    ),
    False,
)
"""What 1.36 lets one switch off of what concerns a DRA driver."""

REST_SECONDS = 10.0


@dataclass
class Site:
    """A control plane with the driver on one node, whose kubelet is a stand-in."""

    plane: ControlPlane
    workload: Workload

    @property
    def api(self) -> Api:
        return self.plane.api

    def writes(self, since: int) -> Counter[tuple[str, str]]:
        """How often each of the daemons wrote what."""
        daemons = {controlplane.MIG_CONTROLLER.name, controlplane.MIG_PLUGIN.name}
        return Counter(
            (each.verb, each.resource)
            for each in audit(self.plane).writes(since=since)
            if each.user in daemons
        )


@contextlib.contextmanager
def site(binaries: Binaries, home: Path, setup: Setup) -> Iterator[Site]:
    (home / "d").mkdir(parents=True)
    with served_plane(binaries, home / "cp", setup=setup) as plane:
        api = plane.api
        add_fake_node(api, NODE)
        driver = Driver(plane, home / "d")
        roots: dict[str, Any] = {"kubelet_root": home / "k", "cdi_root": home / "cdi"}
        driver.add_node(NODE, gpus=("A100-SXM4-40GB",), **roots)
        kubelet = Process(
            "kubelet",
            [
                *(sys.executable, "-m", "sim", "kubelet", "--node-name", NODE),
                *("--kubeconfig", str(plane.kubeconfig(controlplane.ADMIN))),
                *("--kubelet-root", str(home / "k"), "--cdi-root", str(home / "cdi")),
            ],
            logs=home,
        )

        def tails() -> str:
            return f"{driver.tails()}\n{kubelet.tail()}"

        def served() -> bool:
            with contextlib.suppress(ApiError):
                found = api.find("MigNode", NODE)
                return bool(found and found.get("status")) and bool(
                    api.find("DeviceClass", "mig-min-40gb")
                )
            return False

        with driver:
            kubelet.start()
            try:
                wait_for("driver", served, timeout=60, context=tails)
                workload = Workload(api, tails=tails)
                yield Site(plane, workload)
                workload.clear()
            finally:
                kubelet.stop()


@pytest.fixture(scope="module", params=["1.34", "1.35", "1.36"])
def version(request: pytest.FixtureRequest, binaries: Binaries, root: Path) -> Iterator[Site]:
    number = request.param
    with site(binaries, root / f"g{number[2:]}", Setup(emulated=number)) as made:
        assert made.api.request("GET", "/version")["emulationMinor"] == number[2:]
        yield made


@pytest.fixture(scope="module")
def bare(binaries: Binaries, root: Path) -> Iterator[Site]:
    with site(binaries, root / "gb", Setup(gates=ALL_OFF)) as made:
        yield made


def one_of(*profiles: str) -> Obj:
    """A claim for the first of some profiles that is to be had."""
    wanted = [{"name": f"s{i}", "deviceClassName": f"mig-{p}"} for i, p in enumerate(profiles)]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "one-of"},
        "spec": {"devices": {"requests": [{"name": "slice", "firstAvailable": wanted}]}},
    }


def run(site: Site, name: str) -> Obj:
    """Runs a pod with a slice and returns its claim."""
    claims = {"gpu": site.workload.template(name, device_class="mig-1g.5gb")}
    site.workload.create(pod(name, SLEEPING, claims=claims, **GRACE))
    site.workload.wait_for_phase(name, "Running")
    claim = site.workload.claim_of(name)
    assert claim is not None
    return claim


def test_a_pod_runs_with_its_slice_on_every_version(version: Site) -> None:
    claim = run(version, "plain")
    name = claim["metadata"]["name"]
    wait_for(
        "status.devices",
        lambda: version.api.get("ResourceClaim", name)["status"].get("devices"),
        context=version.workload.describe,
    )
    version.workload.clear()


def test_alternatives_work_on_every_version(version: Site) -> None:
    """DRAPrioritizedList is on by default from 1.34 on."""
    run(version, "neighbour")  # so that no whole GPU is left
    version.workload.create(one_of("7g.40gb", "3g.20gb"))
    version.workload.create(
        pod("either", SLEEPING, claims={"gpu": {"resourceClaimName": "one-of"}}, **GRACE)
    )
    version.workload.wait_for_phase("either", "Running")
    status = version.api.get("ResourceClaim", "one-of")["status"]
    (result,) = status["allocation"]["devices"]["results"]
    assert result["request"] == "slice/s1"
    version.workload.clear()


def test_a_driver_at_rest_writes_nothing_on_any_version(version: Site) -> None:
    at_rest(version)


def at_rest(site: Site) -> None:
    """A pod runs, its claim is described, and nothing is to be done."""
    claim = run(site, "resting")
    quiet = 0

    def still() -> bool:
        nonlocal quiet
        before = audit(site.plane).mark()
        with contextlib.suppress(ClusterError):
            wait_for("write", lambda: changes(site, before), timeout=REST_SECONDS, interval=0.5)
            return False
        return True

    wait_for("rest", still, timeout=60, interval=0, context=site.workload.describe)
    assert claim["metadata"]["name"]
    site.workload.clear()


def changes(site: Site, since: int) -> Counter[tuple[str, str]]:
    found = site.writes(since)
    del found["update", "leases"]  # who leads says so every few seconds
    return found


def test_a_pod_runs_with_its_slice_without_the_gates(bare: Site) -> None:
    claim = run(bare, "plain")
    name = claim["metadata"]["name"]
    found = bare.api.get("ResourceClaim", name)
    assert "devices" not in found["status"]
    assert "extendedResourceName" not in bare.api.get("DeviceClass", "mig-1g.5gb")["spec"]
    (gpu,) = bare.api.get("MigNode", NODE)["status"]["gpus"]
    (instance,) = gpu["instances"]
    assert instance["claim"]["name"] == name
    bare.workload.clear()


def test_daemons_end_and_say_why_where_claims_are_not_served(
    binaries: Binaries, root: Path
) -> None:
    """1.33 has them as a beta that is off."""
    home = root / "g33"
    home.mkdir()
    setup = Setup(emulated="1.33", scheduling=False, controllers=("serviceaccount",))
    with ControlPlane(binaries, home, users=USERS, setup=setup) as plane:
        kubeconfig = str(plane.kubeconfig(controlplane.ADMIN))
        for arguments in (["controller"], ["kubeletplugin", "--node-name", NODE]):
            done = subprocess.run(
                [sys.executable, "-m", *arguments, "--kubeconfig", kubeconfig],
                capture_output=True,
                text=True,
                check=False,
                cwd=REPOSITORY,
                timeout=60,
            )
            assert done.returncode == 1
            assert "resource.k8s.io/v1" in done.stderr
            assert "v1.3" in done.stderr
            assert "upgrade Kubernetes to 1.34 or newer" in done.stderr
