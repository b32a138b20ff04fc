"""The driver under NVIDIA's name: manifests as NVIDIA's samples have them, on a real scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dra.common.resources import Obj, at
from dra.gpu.names import NVIDIA_DRIVER, MigDevice, parse_device
from hack.cluster.binaries import Binaries
from hack.cluster.nodes import add_fake_node, pod
from hack.cluster.plane.controlplane import ControlPlane, Setup
from tests.cluster.conftest import USERS
from tests.cluster.harness.daemons import Driver
from tests.cluster.harness.ground import make_namespace, serve_mignodes
from tests.cluster.harness.workload import SLEEPING
from tests.cluster.test_scheduler_mode import A100, Site, node
from tests.dra.nvidiaslices import future_mig, resource_slice

SCHEDULER = ("--allocator", "scheduler")
PROFILES = ("1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb")


@pytest.fixture(scope="module")
def dropped(binaries: Binaries, root: Path) -> Iterator[Site]:
    """A node of two GPUs in MIG mode, and one of two whole GPUs."""
    home = root / "di"
    (plane := home / "cp").mkdir(parents=True)
    (daemons := home / "d").mkdir()
    with ControlPlane(binaries, plane, users=USERS, setup=Setup()) as control_plane:
        api = control_plane.api
        make_namespace(api)
        serve_mignodes(api)
        driver = Driver(control_plane, daemons, name=NVIDIA_DRIVER)
        for name, mig in (("sliced", True), ("whole", False)):
            add_fake_node(api, name)
            driver.add_node(
                name,
                *SCHEDULER,
                gpus=(A100, A100),
                mig=mig,
                kubelet_root=daemons / f"{name}-k",
                cdi_root=daemons / f"{name}-cdi",
            )
        with driver:
            made = Site(api, driver)
            for name in ("sliced", "whole"):
                made.wait(f"slices of {name}", lambda name=name: made.published(name))
            for name in ("gpu.nvidia.com", "mig.nvidia.com"):
                made.wait(f"class {name}", lambda name=name: api.find("DeviceClass", name))
            yield made


def request(name: str, device_class: str, *selectors: str, count: int = 1) -> Obj:
    exactly: Obj = {"deviceClassName": device_class}
    if selectors:
        exactly["selectors"] = [{"cel": {"expression": each}} for each in selectors]
    if count > 1:
        exactly["count"] = count
    return {"name": name, "exactly": exactly}


def claim(name: str, *requests: Obj, kind: str = "ResourceClaim", **devices: object) -> Obj:
    spec: Obj = {"devices": {"requests": [*requests], **devices}}
    body = {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": name}}
    return {**body, "spec": spec if kind == "ResourceClaim" else {"spec": spec}}


def run(site: Site, name: str, *, of: str, kind: str = "resourceClaimName") -> str:
    site.api.create(pod(name, SLEEPING, claims={"gpu": {kind: of}}))
    return name


def given(site: Site, name: str) -> dict[str, str]:
    """By request, the device that the claim of a pod was given."""
    (entry,) = site.api.get("Pod", name)["spec"]["resourceClaims"]
    statuses = at(site.api.get("Pod", name), "status", "resourceClaimStatuses", default=[])
    owned = entry.get("resourceClaimName") or statuses[0]["resourceClaimName"]
    results = site.api.get("ResourceClaim", owned)["status"]["allocation"]["devices"]["results"]
    assert {each["driver"] for each in results} == {NVIDIA_DRIVER}
    return {each["request"]: str(each["device"]) for each in results}


def bound(site: Site, *names: str) -> None:
    site.wait(f"{', '.join(names)} on nodes", lambda: all(node(site.api, n) for n in names))


@pytest.fixture(autouse=True)
def emptied(dropped: Site) -> Iterator[None]:
    yield
    api = dropped.api
    for each in api.list("Pod"):
        api.delete("Pod", each["metadata"]["name"], grace=0)
    for each in api.list("ResourceClaim"):
        api.delete("ResourceClaim", each["metadata"]["name"])
    dropped.wait("end of all claims", lambda: api.list("ResourceClaim") == [])


def test_two_pods_get_a_gpu_each_by_template_and_a_third_waits(dropped: Site) -> None:
    api = dropped.api
    api.create(claim("single-gpu", request("gpu", "gpu.nvidia.com"), kind="ResourceClaimTemplate"))
    for name in ("pod1", "pod2"):
        run(dropped, name, of="single-gpu", kind="resourceClaimTemplateName")
    bound(dropped, "pod1", "pod2")
    assert {given(dropped, p)["gpu"] for p in ("pod1", "pod2")} == {"gpu-0", "gpu-1"}
    assert {node(api, p) for p in ("pod1", "pod2")} == {"whole"}


def test_two_pods_share_the_gpu_of_one_claim_with_nvidias_configuration(dropped: Site) -> None:
    turns = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
    head = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": turns}
    config = [{"requests": ["gpu"], "opaque": {"driver": "gpu.nvidia.com", "parameters": head}}]
    dropped.api.create(claim("shared", request("gpu", "gpu.nvidia.com"), config=config))
    bound(dropped, run(dropped, "first", of="shared"), run(dropped, "second", of="shared"))
    assert given(dropped, "first") == given(dropped, "second")


def test_two_gpus_in_one_claim(dropped: Site) -> None:
    dropped.api.create(claim("double", request("gpu", "gpu.nvidia.com", count=2)))
    bound(dropped, run(dropped, "pod", of="double"))
    results = dropped.api.get("ResourceClaim", "double")["status"]["allocation"]["devices"]
    assert {each["device"] for each in results["results"]} == {"gpu-0", "gpu-1"}


def test_four_slices_of_one_gpu(dropped: Site) -> None:
    requests = [
        request(
            f"mig-{index}",
            "mig.nvidia.com",
            f"device.attributes['gpu.nvidia.com'].profile == '{profile}'",
        )
        for index, profile in enumerate(PROFILES)
    ]
    same = [{"requests": [], "matchAttribute": "gpu.nvidia.com/parentUUID"}]
    dropped.api.create(claim("mig-devices", *requests, constraints=same))
    bound(dropped, run(dropped, "pod", of="mig-devices"))
    devices = [parse_device(each) for each in given(dropped, "pod").values()]
    assert all(isinstance(each, MigDevice) for each in devices)
    assert len({each.minor for each in devices}) == 1
    assert node(dropped.api, "pod") == "sliced"


def test_a_pod_with_limits_gets_a_whole_gpu(dropped: Site) -> None:
    api = dropped.api
    dropped.wait(
        "the extended resource",
        lambda: api.get("DeviceClass", "gpu.nvidia.com")["spec"].get("extendedResourceName"),
    )
    body = pod("limits", SLEEPING)
    (container,) = body["spec"]["containers"]
    container["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    api.create(body)
    bound(dropped, "limits")
    assert node(api, "limits") == "whole"


def test_the_plugin_ends_and_stays_away_while_nvidias_slices_are_there(dropped: Site) -> None:
    api, plugin = dropped.api, dropped.driver.plugins["sliced"]
    theirs = resource_slice("sliced", future_mig(0), name="sliced-gpu.nvidia.com-x")
    api.create(theirs)
    dropped.wait("the plugin's end", lambda: not plugin.running)
    plugin.start()
    dropped.wait("the refusal", lambda: "two plugins of one name cannot" in plugin.tail())
    dropped.wait("its end", lambda: not plugin.running)
    api.delete("ResourceSlice", "sliced-gpu.nvidia.com-x")
    plugin.start()
    dropped.api.create(claim("after", request("gpu", "mig.nvidia.com")))
    bound(dropped, run(dropped, "after", of="after"))
