"""Pods that need more than room are allocated where kube-scheduler takes them, without trials.

There is no kubelet: a pod that is bound has been taken. Two zones, the smaller one of two nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra.common.resources import Obj
from hack.cluster.binaries import Binaries
from sim.processes import wait_for
from tests.cluster.harness.pods import pod
from tests.cluster.harness.slicesite import SLICE, Ground, Site, ground, site_on
from tests.cluster.harness.workload import SLEEPING

TAPE_DRIVER = "tape.example.com"
TAPE = "tape"


def device_class() -> Obj:
    """The class of the devices."""
    selectors = [{"cel": {"expression": f"device.driver == '{TAPE_DRIVER}'"}}]
    return _object("DeviceClass", TAPE, {"selectors": selectors})


def resource_slice(node: str, count: int, *taints: Obj) -> Obj:
    """``count`` devices of a node, each with these taints, as its driver would publish them."""
    more = {"taints": [*taints]} if taints else {}
    spec = {
        "driver": TAPE_DRIVER,
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": f"tape-{number}", **more} for number in range(count)],
    }
    return _object("ResourceSlice", f"{TAPE}-{node}", spec)


def claim_template() -> Obj:
    """A template of claims for one device, which is called like the class."""
    request = {"name": "r", "exactly": {"deviceClassName": TAPE}}
    return _object("ResourceClaimTemplate", TAPE, {"spec": {"devices": {"requests": [request]}}})


def _object(kind: str, name: str, spec: Obj) -> Obj:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec,
    }


HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
NODES = {f"fake-need-{n:02}": "big" if n < 18 else "small" for n in range(20)}
SMALL = [name for name, zone in NODES.items() if zone == "small"]
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def running(binaries: Binaries, root: Path) -> Iterator[Ground]:
    with ground(binaries, root / "needs", {n: {ZONE: zone} for n, zone in NODES.items()}) as made:
        yield made


@pytest.fixture
def site(running: Ground) -> Iterator[Site]:
    with site_on(running) as made:
        yield made


def _bound_volume(site: Site, name: str, zone: str) -> None:
    """A volume of a zone, and the claim that is bound to it."""
    expression = {"key": ZONE, "operator": "In", "values": [zone]}
    terms = {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}
    both = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    capacity = {"capacity": {"storage": "1Gi"}, "hostPath": {"path": f"/tmp/{name}"}}
    reference = {"claimRef": {"namespace": "default", "name": name}}
    volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}}
    spec = {**both, **capacity, **reference, "nodeAffinity": terms}
    site.workload.create({**volume, "spec": spec})
    site.workload.create(_volume_claim(name, **both, volumeName=name))
    wait_for(
        f"binding of {name}",
        lambda: site.api.get("PersistentVolumeClaim", name)["status"].get("phase") == "Bound",
    )


def _volume_claim(name: str, **spec: Any) -> Obj:
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}}
    return {**claim, "spec": {"resources": {"requests": {"storage": "1Gi"}}, **spec}}


def _uses(name: str) -> list[Obj]:
    return [{"name": "data", "persistentVolumeClaim": {"claimName": name}}]


def _term(topology: str, **labels: str) -> Obj:
    return {"topologyKey": topology, "labelSelector": {"matchLabels": labels}}


def test_pods_go_to_the_zone_of_their_volume(site: Site) -> None:
    _bound_volume(site, "data", "small")
    site.start(10, "zoned", volumes=_uses("data"))
    assert set(site.nodes()) <= {*SMALL}
    site.check_writes()


def test_nothing_is_allocated_while_a_volume_claim_is_missing(site: Site) -> None:
    site.start(3, "early", volumes=_uses("late"))
    wait_for(
        "event that says what is missing",
        lambda: any(
            "PersistentVolumeClaim late does not exist" in e["message"]
            for e in site.api.list("Event", fieldSelector="reason=WaitingForVolumeClaim")
        ),
        context=site.workload.describe,
    )
    assert site.writes() == 0
    _bound_volume(site, "late", "small")
    assert set(site.nodes()) <= {*SMALL}
    site.check_writes()


def test_replicas_that_shun_each_other_get_a_node_each(site: Site) -> None:
    shun = {"podAntiAffinity": {REQUIRED: [_term(HOST, app="apart")]}}
    site.start(20, "apart", labels={"app": "apart"}, affinity=shun)
    assert sorted(site.nodes()) == sorted(NODES)
    site.check_writes()


def test_pods_are_spread_over_zones(site: Site) -> None:
    spread = {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", **_term(ZONE, app="spread")}
    site.start(12, "spread", labels={"app": "spread"}, topologySpreadConstraints=[spread])
    zones = [NODES[name] for name in site.nodes()]
    assert (zones.count("big"), zones.count("small")) == (6, 6)
    site.check_writes()


def test_a_host_port_is_taken_once_a_node(site: Site) -> None:
    ports = [{"containerPort": 8080, "hostPort": 8080}]
    body = pod("x", SLEEPING, claims={"gpu": SLICE})["spec"]["containers"]
    site.start(15, "port", containers=[{**body[0], "ports": ports}])
    assert len({*site.nodes()}) == 15
    site.check_writes()


def _tapes(site: Site, **nodes: int) -> dict[str, dict[str, str]]:
    """Claims of a pod for a device of another driver, which has so many on ``nodes``."""
    slices = (resource_slice(name.replace("_", "-"), n) for name, n in nodes.items())
    for body in (device_class(), *slices, claim_template()):
        site.workload.create(body)
    return {"tape": {"resourceClaimTemplateName": TAPE}}


def test_a_burst_finds_the_nodes_with_a_device_of_another_driver(site: Site) -> None:
    claims = _tapes(site, **{name.replace("-", "_"): 7 for name in SMALL})
    site.start(12, "tape", claims=claims)
    assert set(site.nodes()) <= {*SMALL}
    assert site.writes() == 12


def test_pods_go_where_devices_of_another_driver_are_left(site: Site) -> None:
    """As many pods as devices, in one burst, while others of theirs are being allocated."""
    site.start(12, "tape", claims=_tapes(site, **{f"fake_need_{n:02}": 1 for n in range(12)}))
    assert sorted(site.nodes()) == sorted(NODES)[:12]
    site.check_writes()
