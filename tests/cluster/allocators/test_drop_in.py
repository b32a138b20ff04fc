"""The driver under NVIDIA's name: manifests as NVIDIA's samples have them, on a real scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dra.common.resources import Obj
from dra.gpu.names import NVIDIA_DRIVER, MigDevice, parse_device
from hack.cluster.binaries import Binaries
from tests.cluster.harness.daemons import Driver
from tests.cluster.harness.ground import served_plane
from tests.cluster.harness.pods import add_fake_node, pod
from tests.cluster.harness.schedulersite import A100, Site, node, settled, site, start, template
from tests.cluster.harness.workload import SLEEPING
from tests.dra.resourceslices.nvidiasamples import SAMPLES, Sample
from tests.dra.resourceslices.nvidiaslices import counter_slice, future_mig, gpu, resource_slice

SCHEDULER = ("--allocator", "scheduler")


@pytest.fixture(scope="module")
def dropped(binaries: Binaries, root: Path) -> Iterator[Site]:
    """A node of two GPUs in MIG mode, and one of eight whole GPUs."""
    home = root / "di"
    (daemons := home / "d").mkdir(parents=True)
    with served_plane(binaries, home / "cp") as control_plane:
        api = control_plane.api
        driver = Driver(control_plane, daemons, name=NVIDIA_DRIVER)
        for name, mig, gpus in (("sliced", True, 2), ("whole", False, 8)):
            add_fake_node(api, name)
            driver.add_node(
                name,
                *SCHEDULER,
                gpus=(A100,) * gpus,
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


def claim(name: str, devices: Obj, *, kind: str = "ResourceClaim") -> Obj:
    spec: Obj = {"devices": devices}
    body = {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": name}}
    return {**body, "spec": spec if kind == "ResourceClaim" else {"spec": spec}}


def run(site: Site, name: str, of: str, sample: Sample) -> str:
    """A pod of a sample, with claims of its own or with the one that all name."""
    kind = "resourceClaimName" if sample.shared else "resourceClaimTemplateName"
    body = pod(name, SLEEPING, claims={entry: {kind: of} for entry in sample.claims})
    (first,) = body["spec"]["containers"]
    body["spec"]["containers"] = [
        {**first, "name": f"ctr{index}", "resources": {"claims": [*map(_reference, uses)]}}
        for index, uses in enumerate(sample.containers)
    ]
    site.api.create(body)
    return name


def _reference(use: tuple[str, str]) -> Obj:
    name, request = use
    return {"name": name, **({"request": request} if request else {})}


def given(site: Site) -> list[tuple[str, str]]:
    """Node and device of everything that is allocated: a whole GPU by name, a slice by profile."""
    found = []
    for each in site.api.list("ResourceClaim"):
        for result in each["status"]["allocation"]["devices"]["results"]:
            assert result["driver"] == NVIDIA_DRIVER
            device = parse_device(result["device"])
            called = device.profile_label if isinstance(device, MigDevice) else str(device)
            found.append((result["pool"], called))
    return sorted(found)


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


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_gets_what_it_asks_for(dropped: Site, name: str) -> None:
    sample = SAMPLES[name]
    kind = "ResourceClaim" if sample.shared else "ResourceClaimTemplate"
    dropped.api.create(claim(name, sample.devices, kind=kind))
    bound(dropped, *(run(dropped, f"{name}-{n}", name, sample) for n in range(sample.pods)))
    on = "whole" if sample.whole else "sliced"
    assert given(dropped) == sorted((on, each.replace(".", "")) for each in sample.given)


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
    sample = SAMPLES["gpu-anymig"]
    api.create(claim("after", sample.devices, kind="ResourceClaimTemplate"))
    bound(dropped, run(dropped, "after", "after", sample))


# -- nVIDIA's DRA driver beside us, on a real control plane that knows its ResourceSlices


ACTIVE = "NvidiaDraDriverActive"


@pytest.fixture(scope="module")
def one(binaries: Binaries, root: Path) -> Iterator[Site]:
    """A node that the controller allocates."""
    with site(binaries, root / "nb", {"node": ("controller", 1)}, {}) as made:
        template(made.api, "mig-1g.5gb")
        yield made


def reason(site: Site) -> str:
    (found,) = site.api.get("MigNode", "node")["status"]["gpus"]
    return str(found.get("reason", ""))


def test_nothing_is_offered_while_it_publishes_devices_of_the_node(one: Site) -> None:
    api = one.api
    one.wait("the node", lambda: reason(one) == "")
    made = [
        counter_slice("node"),
        resource_slice("node", gpu(0, partitionable=True), future_mig(0), count=2),
        resource_slice("elsewhere", future_mig(0), name="elsewhere"),
    ]
    for each in made:
        api.create(each)
    one.wait("the conflict", lambda: reason(one) == ACTIVE)
    start(api, "pod", "1g.5gb")
    one.wait("the refusal", lambda: settled(api, "pod") == "refused")
    assert one.devices() == []

    for each in made[:2]:
        api.delete("ResourceSlice", each["metadata"]["name"])
    one.wait("its end", lambda: reason(one) == "")
    one.wait("the pod", lambda: settled(api, "pod") == "bound")
    api.delete("ResourceSlice", "elsewhere")
    api.delete("Pod", "pod", grace=0)
