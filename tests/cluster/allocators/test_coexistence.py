"""NVIDIA's DRA driver beside us, on a real control plane that knows its ResourceSlices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hack.cluster.binaries import Binaries
from tests.cluster.harness.schedulersite import Site, settled, site, start, template
from tests.dra.resourceslices.nvidiaslices import counter_slice, future_mig, gpu, resource_slice

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
