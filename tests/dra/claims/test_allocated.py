"""Claims as a node reads them: what is for others costs next to nothing, however large it is."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dra.claims.claims import TOO_LARGE, read_claim
from dra.claims.stored import CONFIG_BYTES, StoredClaim
from dra.common.resources import Obj

DRIVER, OTHER = "mig.dra.dev", "gpu.example.com"
MINE = {"request": "r", "driver": DRIVER, "pool": "node-1", "device": "gpu-0-mig-1g5gb-19-4"}
LISTS: Obj = {"lists": [[[]] for _ in range(2000)]}
"""Parameters of 10 KiB, as many as the API server takes, and many times that in memory."""


def claim(config: list[Obj], **more: Any) -> Obj:
    metadata = {"name": "c", "namespace": "default", "uid": "u", "resourceVersion": "7"}
    return {
        "metadata": {**metadata, "labels": {f"label-{n}": "x" for n in range(3000)}},
        "spec": {"devices": {"config": config}},
        "status": {"allocation": {"devices": {"results": [MINE], "config": config}}, **more},
    }


def config(driver: str, parameters: Any, source: str = "FromClaim") -> Obj:
    opaque = {"driver": driver, "parameters": parameters}
    return {"source": source, "requests": ["r"], "opaque": opaque}


def as_read(obj: Obj) -> Obj:
    text = msgspec.json.encode(obj)
    return msgspec.json.decode(text, type=StoredClaim).allocated(DRIVER)


def test_parameters_for_this_driver_are_there_in_their_places() -> None:
    ours = config(DRIVER, {"kind": "MigDeviceConfig"})
    found = as_read(claim([config(OTHER, LISTS), ours, {"source": "FromClaim"}]))
    entries = found["status"]["allocation"]["devices"]["config"]
    assert entries[0] == {"source": "FromClaim", "requests": ["r"], "opaque": {"driver": OTHER}}
    assert entries[1] == ours
    assert entries[2] == {"source": "FromClaim", "requests": []}


def test_more_parameters_of_a_claim_than_are_read_say_their_size_and_those_of_classes_stay() -> (
    None
):
    ours = config(DRIVER, {"x": "y" * (CONFIG_BYTES - 8)})
    (read,) = as_read(claim([ours]))["status"]["allocation"]["devices"]["config"]
    assert read == ours
    of_class = config(DRIVER, {"x": "y" * CONFIG_BYTES}, "FromClass")
    one, two, three = as_read(claim([ours, of_class, config(DRIVER, {})]))["status"]["allocation"][
        "devices"
    ]["config"]
    assert (one[TOO_LARGE], three[TOO_LARGE]) == (CONFIG_BYTES + 2, CONFIG_BYTES + 2)
    assert one["opaque"] == three["opaque"] == {"driver": DRIVER}
    assert two == of_class


def test_what_a_claim_shows_of_our_devices_is_there_and_of_others_is_not() -> None:
    ours = {"driver": DRIVER, "pool": "node-1", "device": "d", "conditions": [], "data": {"a": 1}}
    others = {"driver": OTHER, "pool": "p", "device": "d", "data": LISTS}
    assert as_read(claim([], devices=[others, ours]))["status"]["devices"] == [ours]


@pytest.mark.parametrize(
    ("status", "allocated", "reserved"),
    [
        (None, False, 0),
        ({}, False, 0),
        ({"allocation": None, "reservedFor": None}, False, 0),
        ({"allocation": {"devices": {"results": None, "config": None}}}, True, 0),
        (
            {"allocation": {}, "reservedFor": [{"resource": "pods", "name": "p", "uid": "x"}]},
            True,
            1,
        ),
    ],
)
def test_fields_that_are_null_or_missing_are_none(
    status: Obj | None, *, allocated: bool, reserved: int
) -> None:
    found = read_claim(as_read({**claim([]), "status": status}))
    assert (found.allocation is not None, len(found.reserved_for)) == (allocated, reserved)
    assert (found.ref.uid, found.deleting) == ("u", False)
