"""Layouts in mig-parted's format, and classes of nodes: what is read, and what is refused how."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from api.errors import InvalidObjectError
from api.nodeclass import (
    DeviceFilter,
    LayoutEntry,
    NodeClass,
    decode_layouts,
    decode_node_class,
)

GOOD = """
version: v1
mig-configs:
  all-disabled: [{devices: all, mig-enabled: false}]
  all-enabled: [{devices: all, mig-enabled: true, mig-devices: {}}]
  custom:
  - device-filter: "0x20B010DE"
    devices: [0, 3]
    mig-enabled: true
    mig-devices: {"1g.5gb": 2, "2g.10gb": 0, "1g.5gb+me": 1}
  - device-filter: ["0x233010DE:0x16C110DE", 0x233110DE]
    devices: all
    mig-enabled: true
    mig-devices: {"1c.3g.40gb": 2, "1g.24gb-me": 1, "1g.24gb+me.all": 1, "4g.96gb+gfx": 1}
""".replace("0x233110DE]", '"0x233110DE"]')


def test_all_that_the_format_has_is_read() -> None:
    found = decode_layouts(yaml.safe_load(GOOD))
    assert found["all-disabled"] == (LayoutEntry(mig_enabled=False),)
    assert found["all-enabled"] == (LayoutEntry(mig_enabled=True),)
    first, second = found["custom"]
    assert first == LayoutEntry(
        mig_enabled=True,
        counts=(("1g.5gb", 2), ("1g.5gb+me", 1)),
        filters=(DeviceFilter(0x20B010DE),),
        indexes=(0, 3),
    )
    assert second.filters == (DeviceFilter(0x233010DE, 0x16C110DE), DeviceFilter(0x233110DE))
    assert [name for name, _ in second.counts] == [
        "1c.3g.40gb",
        "1g.24gb-me",
        "1g.24gb+me.all",
        "4g.96gb+gfx",
    ]


@pytest.mark.parametrize(
    ("index", "device", "subsystem", "covered"),
    [
        (0, 0x20B010DE, 0, True),
        (1, 0x20B010DE, 0, False),
        (3, 0x20B010DE, 7, True),
        (0, 0x20B110DE, 0, False),
    ],
)
def test_an_entry_is_about_gpus_by_index_and_kind(
    index: int, device: int, subsystem: int, *, covered: bool
) -> None:
    entry = decode_layouts(yaml.safe_load(GOOD))["custom"][0]
    assert entry.covers(index, device=device, subsystem=subsystem) is covered


def test_a_board_counts_where_it_is_named() -> None:
    entry = decode_layouts(yaml.safe_load(GOOD))["custom"][1]
    assert entry.covers(5, device=0x233010DE, subsystem=0x16C110DE)
    assert not entry.covers(5, device=0x233010DE, subsystem=0)
    assert entry.covers(5, device=0x233110DE, subsystem=0)


def one(**fields: Any) -> dict[str, Any]:
    named = {key.replace("_", "-"): value for key, value in fields.items()}
    entry = {"devices": "all", "mig-enabled": True, "mig-devices": {"1g.5gb": 1}} | named
    kept = {key: value for key, value in entry.items() if value != "-"}
    return {"version": "v1", "mig-configs": {"x": [kept]}}


BAD: list[tuple[Any, str, str]] = [
    ([], "", "must be an object"),
    ({"mig-configs": {}}, "version", "allowed are: v1"),
    ({"version": "v2", "mig-configs": {}}, "version", "'v2' is not known; allowed are: v1"),
    ({"version": "v1"}, "mig-configs", "at least one layout"),
    ({"version": "v1", "mig-configs": {}}, "mig-configs", "at least one layout"),
    ({"version": "v1", "mig-configs": {"x": []}}, "mig-configs.x", "at least one entry"),
    ({"version": "v1", "mig-configs": {"x": [1]}}, "mig-configs.x[0]", "must be an object"),
    ({"version": "v1", "other": 1}, "other", "unknown field; allowed are: version"),
    (one(count=1), "mig-configs.x[0].count", "unknown field; allowed are: device-filter"),
    (one(devices="some"), "mig-configs.x[0].devices", "'some' is not allowed; allowed are: all"),
    (one(devices="-"), "mig-configs.x[0].devices", "None is not allowed; allowed are: all"),
    (one(devices=[True]), "mig-configs.x[0].devices", "allowed are: all"),
    (one(mig_enabled="yes"), "mig-configs.x[0].mig-enabled", "allowed are: true, false"),
    (one(mig_enabled=False), "mig-configs.x[0].mig-devices", "must be empty"),
    (one(mig_devices="-"), "mig-configs.x[0].mig-devices", "the field is missing"),
    (one(mig_devices=[]), "mig-configs.x[0].mig-devices", "must be an object of profiles"),
    (one(mig_devices={"small": 1}), "mig-configs.x[0].mig-devices", "'small' is no profile"),
    (one(mig_devices={"1g.5gb": -1}), "mig-configs.x[0].mig-devices.1g.5gb", "0 or more"),
    (one(mig_devices={"1g.5gb": True}), "mig-configs.x[0].mig-devices.1g.5gb", "0 or more"),
    (one(mig_devices={"1g.5gb": 0}), "mig-configs.x[0].mig-devices", "all its numbers are 0"),
    (one(device_filter=["A100"]), "mig-configs.x[0].device-filter", "'A100' is no PCI device"),
    (one(device_filter="1:2:3"), "mig-configs.x[0].device-filter", "'1:2:3' is no PCI device"),
    (one(device_filter=[1]), "mig-configs.x[0].device-filter", "1 is no PCI device"),
]


@pytest.mark.parametrize(("obj", "path", "problem"), BAD)
def test_what_is_wrong_is_named_with_its_field(obj: Any, path: str, problem: str) -> None:
    with pytest.raises(InvalidObjectError) as error:
        decode_layouts(obj)
    assert error.value.path == path
    assert problem in error.value.problem


def node_class(**fields: Any) -> dict[str, Any]:
    return {"apiVersion": "mig.dra.dev/v1alpha1", "kind": "MigNodeClass", **fields}


def test_a_class_of_nodes_is_read() -> None:
    assert decode_node_class(node_class()) == NodeClass()
    found = decode_node_class(
        node_class(
            metadata={"name": "x"},
            mode="layout",
            layout="x",
            migMode="switch",
            layouts=one(),
            shares=4,
        )
    )
    entry = LayoutEntry(mig_enabled=True, counts=(("1g.5gb", 1),))
    assert found == NodeClass("layout", "x", "switch", {"x": (entry,)}, shares=4)
    assert decode_node_class(node_class(sliceShares=3)).slice_shares == 3


@pytest.mark.parametrize(
    ("obj", "path", "problem"),
    [
        (None, "", "must be an object"),
        ({}, "", "apiVersion and kind must be 'mig.dra.dev/v1alpha1' and 'MigNodeClass'"),
        (node_class(mode="fast"), "mode", "'fast' is not allowed; allowed are: on-demand, layout"),
        (node_class(migMode=True), "migMode", "True is not allowed; allowed are: keep, enable"),
        (node_class(mode="layout"), "layout", "the field is missing, and mode is 'layout'"),
        (node_class(layout=7), "layout", "7 is no name"),
        (
            node_class(shares=0),
            "shares",
            "0 is not allowed; allowed are whole numbers from 1 to 64",
        ),
        (node_class(shares=True), "shares", "True is not allowed"),
        (node_class(sliceShares=65), "sliceShares", "65 is not allowed; allowed are whole"),
        (node_class(hamiCore="/a"), "hamiCore", "unknown field; allowed are: apiVersion, kind"),
        (node_class(layouts=[]), "layouts", "must be an object"),
        (node_class(layouts=one(devices=1)), "layouts.mig-configs.x[0].devices", "allowed are"),
    ],
)
def test_a_wrong_class_of_nodes_is_refused(obj: Any, path: str, problem: str) -> None:
    with pytest.raises(InvalidObjectError) as error:
        decode_node_class(obj)
    assert error.value.path == path
    assert problem in str(error.value)
    assert str(error.value).startswith("MigNodeClass")
