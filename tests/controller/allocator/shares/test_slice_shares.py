"""Several claims on one slice: begun, joined, counted and kept apart from slices that one has."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from dra.common.resources import Obj
from dra.gpu.holdings import find_blocker
from tests.controller.allocator.shares.sliceshares import (
    PART,
    asking,
    bench,
    configured,
    given,
    shared,
    told,
)
from tests.controller.allocator.shares.test_shares import place
from tests.controller.helpers.deciding import decide, devices, why
from tests.controller.helpers.objects import (
    claim,
    device_class,
    instance,
    inventory,
    request,
    versioned,
    with_gpus,
)

EXAMPLE = Path(__file__).parents[4] / "docs/examples/slice-shares.yaml"


JOINS, BEGINS = True, False


@pytest.mark.parametrize(
    ("given", "asked", "profile", "joins"),
    [
        ([("4Gi", "")], ("700Mi", ""), "1g5gb", JOINS),
        ([("4Gi", "")], ("1Gi", ""), "1g5gb", BEGINS),
        ([("1Gi", "60")], ("", "41"), "1g5gb", BEGINS),
        ([("1Gi", "60")], ("", "40"), "1g5gb", JOINS),
        ([("6Gi", "")], ("1Gi", ""), "1g10gb", JOINS),
        ([("6Gi", "")], ("6Gi", ""), "1g10gb", BEGINS),
        ([("6Gi", ""), ("1Gi", ""), ("4Gi", "")], ("700Mi", ""), "1g5gb", JOINS),
        ([("6Gi", "")], ("", ""), "1g10gb", JOINS),
        ([], ("15Gi", ""), "3g20gb", BEGINS),
        ([], ("39Gi", ""), "7g40gb", BEGINS),
    ],
)
def test_a_share_joins_where_amounts_suffice_else_begins_the_smallest_that_does(
    given: list[tuple[str, str]], asked: tuple[str, str], profile: str, *, joins: bool
) -> None:
    on = bench()
    before = {place(on, f"g{n}", asking(*amounts))["device"] for n, amounts in enumerate(given)}
    found = place(on, "c", asking(*asked))["device"]
    assert found.startswith(f"gpu-0-mig-{profile}-")
    assert (found in before) is joins


def test_the_pods_of_the_example_share_a_slice() -> None:
    on = bench()
    asked = {
        body["metadata"]["name"]: body["spec"]["spec"]["devices"]["requests"][0]
        for body in yaml.safe_load_all(EXAMPLE.read_text())
        if body["kind"] == "ResourceClaimTemplate"
    }
    found = [place(on, name, body) for name, body in sorted(asked.items())]
    (device,) = {each["device"] for each in found}
    assert device.startswith("gpu-0-mig-1g10gb-")
    consumed = [each["consumedCapacity"] for each in found]
    assert [(c["memory"], c["cores"]) for c in consumed] == [
        ("6000Mi", "60"),
        (f"{9856 // 4}Mi", "0"),
    ]


def test_what_has_no_room_is_told_by_slice_and_limit() -> None:
    on = bench(shared(0, 2))
    whole = f"{40192 - 100}Mi"
    place(on, "a", asking(whole, "60"))
    assert place(on, "b", asking("1Gi")) == {}
    assert "7g.40gb at 0:8: 100 of 40192 MiB are left, 1024 are asked for" in told(on)
    assert place(on, "c", asking("100Mi", "41")) == {}
    assert "7g.40gb at 0:8: 40 of 100 % of the cores are left, 41 are asked for" in told(on)
    assert "no room for a share of 1g.5gb or 1g.5gb+me" in told(on)
    assert place(on, "d", asking("100Mi", "40"))["device"] == "gpu-0-mig-7g40gb-0-0-share"
    assert place(on, "e", asking("0")) == {}
    assert "7g.40gb at 0:8: all 2 shares are in use" in told(on)
    assert place(on, "f", asking("41Gi")) == {}


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
    ("config", "expected"),
    [
        (configured(share={"memoryMiB": 6000}), "1g10gb"),
        (configured(share={"cores": 50}), "1g5gb"),
        (configured("GpuConfig", share={"memoryMiB": 6000}), ""),
        (configured(share={"tenants": "any"}), ""),
    ],
)
def test_configuration_states_a_share_where_the_api_has_no_capacity_requests(
    config: list[Obj], expected: str
) -> None:
    on = bench()
    found = place(on, "a", asking(), config=config).get("device", "")
    assert found.removeprefix("gpu-0-mig-").partition("-")[0] == expected


def test_selectors_that_do_not_look_at_the_type_are_given_no_part() -> None:
    known = with_gpus(shared())
    body = device_class("five", "device.attributes['mig.dra.dev'].profile == '1g.5gb'")
    known.set_class(versioned(body))
    given(known, "part", PART)
    for start in range(1, 6):
        given(known, f"s{start}", f"gpu-0-mig-1g5gb-19-{start}")
    asked = claim("a", request("r", "five"))
    assert devices(decide(known, asked)) == ["gpu-0-mig-1g5gb-19-6"]
    given(known, "last", "gpu-0-mig-1g5gb-19-6")
    assert "no room for 1g.5gb" in why(known, asked).message


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
