"""Nodes on which other drivers could serve a pod's claims, by their ResourceSlices."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from dra.cel.kinds import Kinds
from dra.cel.selectors import Selectors
from dra.claims import otherdevices
from dra.claims.claims import Claim, read_claim
from dra.claims.classes import read_class
from dra.claims.otherdevices import OtherDevices, trim_slice
from dra.common.resources import Obj
from tests.controller.helpers.objects import DRIVER, claim, device_class, first_available, request

NODES = ("a", "b", "c")
NIC = "nic.example.com"
CLASS = read_class(device_class("nic", f"device.driver == '{NIC}'"), DRIVER)


def a_claim(*requests: Obj, **more: Any) -> Claim:
    body = claim("nics", *requests)
    body["metadata"] |= {"namespace": "default", "uid": "uid"}
    return read_claim({**body, **more})


def published(name: str, *devices: Obj, **where: Any) -> Obj:
    spec = {"driver": NIC, "pool": {"name": name}, "devices": [*devices], **where}
    return trim_slice({"metadata": {"name": name}, "spec": spec})


def nic(number: int, **attributes: Any) -> Obj:
    return {"name": f"nic-{number}", "attributes": attributes}


def of_nodes(**counts: int) -> OtherDevices:
    known = OtherDevices(DRIVER)
    for node, count in counts.items():
        devices = [nic(n, speed={"int": 100 * n}) for n in range(count)]
        known.set_slice(published(node, *devices, nodeName=node))
    return known


def nodes(known: OtherDevices, *requests: Obj) -> Collection[str] | None:
    kinds = Kinds(Selectors())
    wanted = a_claim(*requests)
    return known.nodes_for([wanted], {"nic": CLASS}, kinds.selected_others, NODES)


def given(*devices: str, pool: str = "a", **more: Any) -> Claim:
    results = [{"request": "r", "driver": NIC, "pool": pool, "device": d, **more} for d in devices]
    allocation = {"devices": {"results": results}}
    return a_claim(status={"allocation": allocation})


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        pytest.param([request("r", "nic")], {"a", "b"}, id="one"),
        pytest.param([request("r", "nic", count=3)], {"b"}, id="several"),
        pytest.param([request("r", "nic", count=9)], set(), id="too many"),
        pytest.param(
            [request("r", "nic", f"device.attributes['{NIC}'].speed >= 200")], {"b"}, id="selector"
        ),
        pytest.param([request("r", "nic"), request("s", "nic", count=3)], {"b"}, id="both"),
        pytest.param(
            [first_available("r", ("x", "nic", {"count": 3}), ("y", "nic", {}))],
            {"a", "b"},
            id="alternatives",
        ),
        pytest.param(
            [request("r", "nic", count=9, adminAccess=True)], {*NODES}, id="only to look at"
        ),
        pytest.param([request("r", "nic", "device.driver == 'x'")], None, id="nothing is such"),
        pytest.param([request("r", "missing")], None, id="no class"),
        pytest.param([request("r", "nic", "device.attributes['x.y'].z")], None, id="fails"),
    ],
)
def test_of_what_is_published_each_node_that_has_it_suits(
    asked: list[Obj], found: set[str] | None
) -> None:
    assert nodes(of_nodes(a=2, b=4), *asked) == found


@pytest.mark.parametrize("more", [{"adminAccess": True}, {"shareID": "s"}])
def test_a_device_that_several_may_have_stays_there(more: Obj) -> None:
    known = of_nodes(a=1)
    known.exchange(None, given("nic-0", **more).allocation)
    assert nodes(known, request("r", "nic")) == {"a"}


TOLERATED = {"key": "sick", "operator": "Exists"}


@pytest.mark.parametrize(
    ("effects", "tolerations", "found"),
    [
        pytest.param(["NoSchedule"], [], {"b"}, id="kept away"),
        pytest.param(["NoExecute"], [], {"b"}, id="sent away"),
        pytest.param(["None"], [], {"a", "b"}, id="only said"),
        pytest.param(["NoSchedule"], [TOLERATED], {"a", "b"}, id="tolerated"),
        pytest.param(
            ["NoSchedule", "NoExecute"],
            [{**TOLERATED, "effect": "NoSchedule"}],
            {"b"},
            id="one of two",
        ),
        pytest.param(["NoSchedule"], [{"key": "sick", "value": "x"}], {"b"}, id="another value"),
    ],
)
def test_a_device_with_a_taint_is_for_those_alone_that_tolerate_it(
    effects: list[str], tolerations: list[Obj], found: set[str]
) -> None:
    known = of_nodes(b=1)
    taints = [{"key": "sick", "effect": e, "timeAdded": "2026-01-01T00:00:00Z"} for e in effects]
    known.set_slice(published("a", {**nic(0), "taints": taints}, nodeName="a"))
    assert nodes(known, request("r", "nic", tolerations=tolerations)) == found
    known.set_slice(published("a", nic(0), nodeName="a"))
    assert nodes(known, request("r", "nic", tolerations=tolerations)) == {"a", "b"}


def test_where_all_that_is_published_is_tainted_no_node_is_tried() -> None:
    known = OtherDevices(DRIVER)
    tainted = {**nic(0), "taints": [{"key": "sick", "effect": "NoSchedule"}]}
    known.set_slice(published("a", tainted, nodeName="a"))
    assert nodes(known, request("r", "nic")) == set()
    held = given("nic-0").allocation
    known.exchange(None, held)
    assert nodes(known, request("r", "nic", tolerations=[TOLERATED])) == set()
    known.exchange(held, None)
    assert nodes(known, request("r", "nic", tolerations=[TOLERATED])) == {"a"}


def test_of_slices_that_are_too_large_together_nothing_is_ruled_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = of_nodes(a=1)
    monkeypatch.setattr(otherdevices, "MOST_BYTES", 1000)
    known.set_slice(published("b", *map(nic, range(9)), nodeName="b"))
    assert nodes(known, request("r", "nic", count=100)) == {"b"}
    known.set_slice(published("c", *map(nic, range(9)), allNodes=True))
    assert nodes(known, request("r", "nic")) is None
    known.remove_slice("c")
    known.remove_slice("a")
    known.set_slice(published("b", nic(0), nodeName="b"))
    assert nodes(known, request("r", "nic")) == {"b"}
