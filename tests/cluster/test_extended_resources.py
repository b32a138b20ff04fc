"""Extended resources of two drivers on a real control plane: pods stay with whom they were."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hack.cluster.api import Obj
from hack.cluster.binaries import Binaries
from hack.cluster.nodes import pod
from tests.cluster.harness.workload import SLEEPING
from tests.cluster.test_scheduler_mode import Site, settled, site

NAME = "nvidia.com/mig-1g.5gb"
OURS, THEIRS = "mig-1g.5gb", "nvidia-mig-1g.5gb"


@pytest.fixture(scope="module")
def one(binaries: Binaries, root: Path) -> Iterator[Site]:
    """A node that kube-scheduler allocates."""
    with site(binaries, root / "er", {"big": ("scheduler", 1)}, {}) as made:
        made.wait("slices", lambda: made.published("big"))
        yield made


def carried(site: Site) -> str:
    found = site.api.get("DeviceClass", OURS)["spec"]
    return str(found.get("extendedResourceName", ""))


def by_limits(name: str) -> Obj:
    body = pod(name, SLEEPING)
    (container,) = body["spec"]["containers"]
    container["resources"] = {"limits": {NAME: "1"}}
    return body


def test_a_class_that_appears_later_keeps_its_pods(one: Site) -> None:
    api = one.api
    one.wait("the name", lambda: carried(one) == NAME)
    selector = {"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}
    api.create(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": THEIRS},
            "spec": {"selectors": [selector], "extendedResourceName": NAME},
        }
    )
    one.wait("the name to be left to it", lambda: carried(one) == "")
    one.wait(
        "the event",
        lambda: any(
            e["reason"] == "ExtendedResourceTaken" and e["regarding"]["name"] == OURS
            for e in api.request("GET", "/apis/events.k8s.io/v1/events")["items"]
        ),
    )
    # Their driver has no device here, and ours is not asked.
    api.create(by_limits("theirs"))
    one.wait("the refusal", lambda: settled(api, "theirs") == "refused")
    assert one.devices() == []

    api.delete("DeviceClass", THEIRS)
    one.wait("the name to come back", lambda: carried(one) == NAME)
    one.wait("the pod to be ours", lambda: settled(api, "theirs") == "bound")
    assert [node for node, _ in one.devices()] == ["big"]
    api.delete("Pod", "theirs", grace=0)
