"""Containers that use a claim shared by MPS beside another: what the node reads, and refuses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dra.common.resources import PODS, RESOURCE_CLAIMS, Obj
from dra.gpu.geometry import Placement
from dra.gpu.inventory import ClaimRef
from dra.kube.client import KubeApi
from dra.kube.errors import ForbiddenError, KubeError
from kubeletplugin.claims.lookup import ClaimReader
from kubeletplugin.claims.sharing.containers import ContainerCheck
from kubeletplugin.errors import ClaimError, PluginError, StartingError
from kubeletplugin.host.roots import Roots
from kubeletplugin.journal.entries import Entry, MpsLimits, State
from kubeletplugin.journal.journal import Journal
from kubeletplugin.options import Options
from tests.failures.helpers.folderapi import FolderHttp

DRIVER, NODE = "mig.dra.dev", "node-1"
PLACES = {"one": "gpu-0-mig-1g5gb-19-4", "two": "gpu-0-mig-1g5gb-19-5", "nic": "eth0"}
MPS: Obj = {
    "apiVersion": "mig.dra.dev/v1alpha1",
    "kind": "MigDeviceConfig",
    "sharing": {"strategy": "MPS"},
}


class Site:
    """Pods and claims of one namespace, and what the node has prepared of them."""

    def __init__(self, folder: Path) -> None:
        self.refuse: KubeError | None = None
        self.asked: list[str] = []
        self.read: list[str] = []
        self.journal = Journal(folder / "journal.json")
        self.api = KubeApi(FolderHttp(folder / "api", reach=self._reach))
        roots = Roots(folder, folder, folder, folder, folder)
        options = Options(node_name=NODE, driver_name=DRIVER, roots=roots)
        common: Any = SimpleNamespace(api=self.api, journal=self.journal, options=options)
        self._check = ContainerCheck(common)

    def _reach(self, method: str, path: str) -> None:
        if method == "GET" and "/resourceclaims/" in path:
            self.read.append(path.rpartition("/")[2])
        if method == "GET" and "/pods/" in path:
            self.asked.append(path.rpartition("/")[2])
            if self.refuse is not None:
                raise self.refuse

    def pod(self, name: str, *containers: tuple[str, ...], **changes: Any) -> Obj:
        """A pod here, with containers that use these claims, or ``claim/request`` of them."""
        used = dict.fromkeys(use.partition("/")[0] for uses in containers for use in uses)
        spec = {
            "nodeName": NODE,
            "resourceClaims": [{"name": f"my-{c}", "resourceClaimName": c} for c in used],
            "containers": [
                {"name": f"c{i}", "resources": {"claims": [*map(_reference, uses)]}}
                for i, uses in enumerate(containers)
            ],
        }
        body = {"metadata": {"name": name, "namespace": "default"}, "spec": spec | changes}
        made = self.api.create(PODS, body)
        return {"resource": "pods", "name": name, "uid": made["metadata"]["uid"]}

    def claim(self, name: str, *, by_mps: bool = False, pods: tuple[Obj, ...] = ()) -> ClaimRef:
        driver = "net.example.com" if name == "nic" else DRIVER
        result = {"request": "r", "driver": driver, "pool": NODE, "device": PLACES[name]}
        config = [{"opaque": {"driver": DRIVER, "parameters": MPS}}] if by_mps else []
        return self.given(name, [result], config, pods)

    def of_two(self, pods: tuple[Obj, ...]) -> ClaimRef:
        """A claim ``one`` whose request ``m`` is shared by MPS, and ``t`` is not."""
        places = {"t": PLACES["one"], "m": PLACES["two"]}
        results = [
            {"request": request, "driver": DRIVER, "pool": NODE, "device": device}
            for request, device in places.items()
        ]
        config = {"requests": ["m"], "opaque": {"driver": DRIVER, "parameters": MPS}}
        return self.given("one", results, [config], pods)

    def given(
        self, name: str, results: list[Obj], config: list[Obj], pods: tuple[Obj, ...]
    ) -> ClaimRef:
        allocation = {"devices": {"results": results, "config": config}}
        status = {"allocation": allocation, "reservedFor": [*pods]}
        body = {"metadata": {"name": name, "namespace": "default"}, "spec": {}, "status": status}
        made = self.api.create(RESOURCE_CLAIMS, body)
        return ClaimRef("default", name, made["metadata"]["uid"])

    def prepared(self, ref: ClaimRef, *, by_mps: bool) -> None:
        entry = Entry(ref, PLACES[ref.name], State.PREPARED, "GPU-0", "boot", profile_id=19)
        limits = MpsLimits() if by_mps else None
        self.journal.put(entry.at(State.PREPARED, placement=Placement(4, 1), mps=limits))

    def check(self, ref: ClaimRef) -> PluginError | None:
        reader = ClaimReader(self.api, driver=DRIVER, pool=NODE)
        claim, devices = reader.read(ref)
        entries = [
            Entry(ref, d.device, State.INTENT, "GPU-0", "boot", requests=(d.base_request,), mps=mps)
            for d in devices
            for mps in [MpsLimits() if d.sharing.by_mps else None]
        ]
        try:
            self._check.check(claim, entries)
        except PluginError as error:
            return error
        return None


def _reference(use: str) -> Obj:
    name, _, request = use.partition("/")
    return {"name": f"my-{name}", **({"request": request} if request else {})}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.mark.parametrize(
    ("containers", "mps", "refused"),
    [
        ([("one", "two")], {"one"}, True),
        ([("one", "two")], {"one", "two"}, True),
        ([("two",), ("one", "two")], {"one"}, True),
        ([("one",), ("two",)], {"one", "two"}, False),
        ([("one", "two")], set(), False),
        ([("one", "nic")], {"one"}, False),
        ([("one",), ("one",)], {"one"}, False),
        ([("one", "gone")], {"one"}, False),
    ],
)
def test_a_container_has_one_claim_of_ours_where_one_is_shared_by_mps(
    site: Site, containers: list[tuple[str, ...]], mps: set[str], *, refused: bool
) -> None:
    pod = site.pod("user", *containers)
    refs = {n: site.claim(n, by_mps=n in mps, pods=(pod,)) for n in PLACES}
    error = site.check(refs["one"])
    assert (error is not None) == refused
    if error is not None:
        assert isinstance(error, ClaimError)
        assert "pod user: container 'c" in str(error)
        assert "uses claims one, two, of which at least one has sharing.strategy 'MPS'" in (
            str(error)
        )
        assert "name one of these claims in its resources.claims" in str(error)


@pytest.mark.parametrize(
    ("containers", "told"),
    [
        ([("one/m",), ("one/t",)], ""),
        ([("one/t", "two"), ("one/m",)], ""),
        ([("one",)], "c0' uses claims one/m, one/t, of"),
        ([("one/t",), ("one/m", "one/t")], "c1' uses claims one/m, one/t, of"),
        ([("one/m", "two")], "c0' uses claims one, two, of"),
        ([("one/t",), ("two",)], ""),
    ],
)
def test_of_a_claim_with_several_devices_a_container_has_that_of_the_daemon_alone(
    site: Site, containers: list[tuple[str, ...]], told: str
) -> None:
    pod = site.pod("user", *containers)
    site.claim("two")
    error = site.check(site.of_two((pod,)))
    assert (told in str(error)) if told else error is None


def test_a_claim_without_mps_is_refused_beside_one_that_is_prepared(site: Site) -> None:
    pod = site.pod("user", ("one", "two"))
    one = site.claim("one", by_mps=True, pods=(pod,))
    two = site.claim("two", pods=(pod,))
    assert site.check(two) is None
    assert site.asked == [], "nothing is shared by MPS here: no pod is read"
    site.prepared(one, by_mps=True)
    assert "claims one, two" in str(site.check(two))


def test_a_slice_by_limits_is_one_as_well(site: Site) -> None:
    pod = site.pod("user", ("one",), ("one",))
    one = site.claim("one", by_mps=True, pods=(pod,))
    site.claim("two")
    mapping = {"containerName": "c1", "resourceName": "nvidia.com/mig-1g.5gb", "requestName": "r"}
    status = {"resourceClaimName": "two", "requestMappings": [mapping]}
    body = {"status": {"extendedResourceClaimStatus": status}}
    assert site.check(one) is None
    site.api.patch(PODS, "user", body, namespace="default", subresource="status")
    assert "pod user: container 'c1' uses claims one, two" in str(site.check(one))


def test_pods_that_kubelet_does_not_ask_for_do_not_count(site: Site) -> None:
    good = site.pod("good", ("one",))
    bad = site.pod("bad", ("one", "two"))
    elsewhere = site.pod("elsewhere", ("one",), nodeName="node-2")
    gone = {"resource": "pods", "name": "gone", "uid": "none"}
    group = {"resource": "podgroups", "apiGroup": "scheduling.k8s.io", "name": "good", "uid": "u"}
    site.claim("two")
    one = site.claim("one", by_mps=True, pods=(elsewhere, gone, group, bad))
    assert "pod bad: container 'c0'" in str(site.check(one))
    for others in ((gone,), (good, bad), (bad, good)):
        status = {"status": {"reservedFor": [*others]}}
        site.api.patch(RESOURCE_CLAIMS, "one", status, namespace="default", subresource="status")
        assert site.check(one) is None
    site.asked.clear()
    site.check(one)
    assert site.asked == ["bad", "good"]
    replaced = {"status": {"reservedFor": [{**bad, "uid": "another"}]}}
    site.api.patch(RESOURCE_CLAIMS, "one", replaced, namespace="default", subresource="status")
    assert site.check(one) is None


def test_a_pod_that_cannot_be_read_is_no_reason_to_give_it_the_claim(site: Site) -> None:
    one = site.claim("one", by_mps=True, pods=(site.pod("user", ("one",)),))
    site.refuse = ForbiddenError("no", status=403)
    error = site.check(one)
    assert isinstance(error, StartingError)
    assert "grant this plugin's service account get on pods" in str(error)


def test_a_claim_that_many_containers_use_is_read_once(site: Site) -> None:
    """100 containers with 128 claims each had 12,800 claims read for one Prepare."""
    pod = site.pod("p", *[("one", "nic")] * 20)
    ref = site.claim("one", by_mps=True, pods=(pod,))
    site.claim("nic", pods=(pod,))
    assert site.check(ref) is None
    assert site.read == ["one", "nic"]
