"""Several claims on one slice: begun, joined, counted and kept apart from slices that one has."""

from __future__ import annotations

import pytest

from dra.gpu.holdings import find_blocker
from tests.controller.allocator.shares.sliceshares import (
    PART,
    asking,
    bench,
    configured,
    shared,
)
from tests.controller.allocator.shares.test_shares import place
from tests.controller.helpers.objects import (
    device_class,
    instance,
    inventory,
    request,
)


def test_namespaces_share_a_slice_only_where_the_class_lets_them() -> None:
    on = bench(shared(0, 4))
    body = device_class("open", "device.attributes['mig.dra.dev'].type == 'mig-share'")
    body["spec"]["config"] = configured(share={"tenants": "any", "memoryMiB": 1000})
    body["metadata"] |= {"uid": "u", "resourceVersion": "1"}
    on.cluster.set_class(body)
    own = place(on, "a", asking())["device"]
    assert place(on, "b", asking(), namespace="other")["device"] != own
    anybody = place(on, "c", request("r", "open"))
    assert anybody["consumedCapacity"]["memory"] == "1000Mi"
    assert anybody["device"] != own
    assert place(on, "d", request("r", "open"), namespace="other")["device"] == anybody["device"]
    assert place(on, "e", asking())["device"] == own


@pytest.mark.parametrize(
    ("device", "blocked"),
    [
        (PART, False),
        (PART.removesuffix("-share"), True),
        ("gpu-0-mig-2g10gb-14-0-share", True),
        ("gpu-0-mig-1g5gb-19-1-share", False),
    ],
)
def test_who_has_a_share_of_the_same_slice_is_not_in_the_way(device: str, *, blocked: bool) -> None:
    node = inventory("node-a", shared(instances=(instance("1g.5gb", 0, uid="other"),)))
    assert bool(find_blocker(device, "uid", node)) is blocked


def test_memory_of_a_share_misses_no_profile_by_little() -> None:
    """1g.5gb has 4,864 Mi; a whole slice for 5000Mi would be told of it."""
    on = bench(shared(0, 4))
    place(on, "a", asking("5000Mi"))
    assert on.recorder.reasons("a") == []
