"""Control plane whose kube-scheduler allocates slices, for the tests on one."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dra.common.resources import Obj
from dra.gpu.geometry import Occupant
from dra.gpu.mignode import from_mignode
from dra.gpu.names import MigDevice, parse_device
from hack.cluster.api import Api
from hack.cluster.binaries import Binaries
from hack.cluster.controlplane import Setup
from sim.processes import wait_for
from tests.cluster.harness.daemons import DRIVER, Driver
from tests.cluster.harness.ground import served_plane
from tests.cluster.harness.pods import add_fake_node, pod
from tests.cluster.harness.workload import SLEEPING, node_of

A100 = "A100-SXM4-40GB"
FINALIZER = f"{DRIVER}/allocation"
GATE_OFF = {"DRAPartitionableDevices": False}


@dataclass
class Site:
    """A control plane with the driver; ``nodes`` by the allocator that was asked for."""

    api: Api
    driver: Driver

    def published(self, node: str) -> bool:
        """Whether a node says that its slices are there."""
        found = self.api.find("MigNode", node)
        conditions = (found or {}).get("status", {}).get("conditions", [])
        return any(c["type"] == "SlicesPublished" and c["status"] == "True" for c in conditions)

    def slices(self, node: str) -> list[Obj]:
        return self.api.list("ResourceSlice", fieldSelector=f"spec.nodeName={node}")

    def offered(self, node: str) -> list[str]:
        """Published devices of a node that no claim was given."""
        given = {
            result["device"]
            for claim in self.api.list("ResourceClaim")
            if node_of(claim) == node
            for result in claim["status"]["allocation"]["devices"]["results"]
        }
        published = (d["name"] for s in self.slices(node) for d in s["spec"].get("devices", []))
        return [name for name in published if name not in given]

    def given(self) -> dict[tuple[str, str], int]:
        """By node and device, the number of claims that have it."""
        claims = self.api.list("ResourceClaim")
        allocations = [c.get("status", {}).get("allocation") or {"devices": {}} for c in claims]
        results = (r for a in allocations for r in a["devices"].get("results", ()))
        return Counter((r["pool"], r["device"]) for r in results if r["driver"] == DRIVER)

    def devices(self, *nodes: str) -> list[tuple[str, MigDevice]]:
        """Node and device of every slice that is allocated, of these nodes or of all."""
        found = ((node, parse_device(name)) for node, name in self.given())
        of_nodes = ((node, device) for node, device in found if node in nodes or not nodes)
        return [(node, device) for node, device in of_nodes if isinstance(device, MigDevice)]

    def assert_disjoint(self) -> None:
        """No two claims have one device, but four have one that is shared.

        No two slices share a memory slice, or an engine too many.
        """
        by_gpu: dict[tuple[str, int], list[Occupant]] = {}
        for (node, name), claims in self.given().items():
            device = parse_device(name)
            gpu = from_mignode(self.api.get("MigNode", node)).gpu(f"gpu-{device.minor}")
            assert gpu is not None
            shares = gpu.shares
            if isinstance(device, MigDevice):
                shares = gpu.slice_shares if device.shared else 0
            assert claims <= (shares or 1), (node, name)
            if not isinstance(device, MigDevice):
                continue
            assert gpu.geometry is not None
            profile = gpu.geometry.by_id(device.profile_id)
            assert profile is not None
            (placement,) = (p for p in profile.placements if p.start == device.start)
            others = by_gpu.setdefault((node, device.minor), [])
            assert not any(o.placement.overlaps(placement) for o in others), device
            assert gpu.geometry.fits(gpu.geometry.usage(others), profile, placement), device
            others.append(Occupant(placement, profile.id))

    def wait(self, what: str, check: object, *, timeout: float = 60.0) -> None:
        wait_for(what, check, timeout=timeout, context=self.driver.tails)  # type: ignore[arg-type]


@contextlib.contextmanager
def site(
    binaries: Binaries,
    home: Path,
    nodes: dict[str, tuple[str, int]],
    gates: dict[str, bool],
    *,
    flags: tuple[str, ...] = (),
    schedulers: tuple[str, ...] = (),
    controller_flags: tuple[str, ...] = (),
    apis: tuple[str, ...] = (),
    whole: tuple[str, ...] = (),
    shared: tuple[str, ...] = (),
) -> Iterator[Site]:
    """A control plane of its own; `nodes` are an allocator and a number of GPUs each.

    Of those in ``whole`` the MIG mode is off. Those in ``shared`` give GPUs and slices to four.
    """
    (daemons := home / "d").mkdir(parents=True)
    with served_plane(binaries, home / "cp", setup=Setup(gates=gates, apis=apis)) as control_plane:
        api = control_plane.api
        driver = Driver(
            control_plane, daemons, schedulers=schedulers, controller_flags=controller_flags
        )
        for name, (allocator, gpus) in nodes.items():
            add_fake_node(api, name, labels={"allocator": allocator})
            driver.add_node(
                name,
                *("--allocator", allocator),
                *flags,
                *(("--gpu-shares", "4", "--slice-shares", "4") if name in shared else ()),
                gpus=(A100,) * gpus,
                kubelet_root=daemons / f"{name}-k",
                cdi_root=daemons / f"{name}-cdi",
                mig=name not in whole,
            )
        with driver:
            made = Site(api, driver)
            made.wait(
                "MigNodes and classes",
                lambda: (
                    all(api.find("MigNode", n) for n in nodes)
                    and api.find("DeviceClass", "mig-min-10gb") is not None
                ),
            )
            yield made


def template(api: Api, device_class: str, *, name: str = "") -> None:
    """A template with one request, called like its class unless said otherwise."""
    request = {"name": "slice", "exactly": {"deviceClassName": device_class}}
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name or device_class},
    }
    api.create({**body, "spec": {"spec": {"devices": {"requests": [request]}}}})


def start(api: Api, name: str, profile: str, **selector: str) -> str:
    claims = {"gpu": {"resourceClaimTemplateName": f"mig-{profile}"}}
    api.create(pod(name, SLEEPING, claims=claims, nodeSelector=selector))
    return name


def node(api: Api, name: str) -> str:
    return str(api.get("Pod", name)["spec"].get("nodeName", ""))


def settled(api: Api, name: str) -> str:
    """``bound``, ``refused``, or an empty string while kube-scheduler has not decided."""
    found = api.get("Pod", name)
    if found["spec"].get("nodeName"):
        return "bound"
    conditions = found.get("status", {}).get("conditions", [])
    refused = any(c.get("reason") == "Unschedulable" for c in conditions)
    return "refused" if refused else ""
