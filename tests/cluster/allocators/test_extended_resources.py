"""Extended resources of two drivers on a real control plane: pods stay with whom they were."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra.common.resources import Obj
from hack.cluster.api import ApiError
from hack.cluster.binaries import Binaries
from tests.cluster.harness.pods import pod
from tests.cluster.harness.schedulersite import Site, settled, site
from tests.cluster.harness.workload import SLEEPING

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


def taken_by(site: Site) -> str:
    annotations = site.api.get("DeviceClass", OURS)["metadata"]["annotations"]
    return str(annotations.get("mig.dra.dev/extended-resource-taken-by", ""))


def class_of(site: Site, pod_name: str) -> str:
    """The class of the claim that kube-scheduler made for a pod with limits."""
    status = site.api.get("Pod", pod_name)["status"]
    claim = site.api.get(
        "ResourceClaim", status["extendedResourceClaimStatus"]["resourceClaimName"]
    )
    (request,) = claim["spec"]["devices"]["requests"]
    return str(request["exactly"]["deviceClassName"])


def test_a_class_that_appears_later_keeps_its_pods(one: Site) -> None:
    """Theirs selects our slices here, so that it shows whose class a pod was given."""
    api = one.api
    one.wait("the name", lambda: carried(one) == NAME)
    own = api.get("DeviceClass", OURS)
    theirs = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": THEIRS},
        "spec": {"selectors": own["spec"]["selectors"], "extendedResourceName": NAME},
    }

    def in_a_later_second() -> bool:
        with contextlib.suppress(ApiError):
            api.delete("DeviceClass", THEIRS)
        made = api.create(theirs)["metadata"]["creationTimestamp"]
        return str(made) > str(own["metadata"]["creationTimestamp"])

    one.wait("a newer class", in_a_later_second)
    one.wait("it to be seen", lambda: taken_by(one) == THEIRS)
    one.wait(
        "the event",
        lambda: any(
            e["reason"] == "ExtendedResourceTaken" and e["regarding"]["name"] == OURS
            for e in api.request("GET", "/apis/events.k8s.io/v1/events")["items"]
        ),
    )
    api.create(by_limits("theirs"))
    one.wait("the pod", lambda: settled(api, "theirs") == "bound")
    assert class_of(one, "theirs") == THEIRS

    api.delete("DeviceClass", THEIRS)
    one.wait("its end to be seen", lambda: taken_by(one) == "")
    api.create(by_limits("ours"))
    one.wait("the pod", lambda: settled(api, "ours") == "bound")
    assert class_of(one, "ours") == OURS
    for name in ("theirs", "ours"):
        api.delete("Pod", name, grace=0)
