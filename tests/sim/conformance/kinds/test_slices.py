"""ResourceSlices and DeviceClasses: what a publishing driver can get wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.sim.conformance.helpers.builders import (
    DRA,
    counters,
    device,
    resource_slice,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sim.conformance.helpers.client import Api

Obj = dict[str, Any]

SLICES = f"{DRA}/resourceslices"
CLASSES = f"{DRA}/deviceclasses"


def test_a_slice_comes_back_as_it_was_sent(
    api: Api, unique: str, cleanup: Callable[[str], str]
) -> None:
    consumed = [{"counterSet": "gpu-0-counter-set", "counters": counters(1)}]
    entry = device(
        attributes={"profile": {"string": "1g.5gb"}, "resource.kubernetes.io/x": {"int": 1}},
        capacity={"memory": {"value": "4864Mi"}},
        consumesCounters=consumed,
    )
    body = resource_slice(unique, entry)
    created = api.post(SLICES, body).ok()
    cleanup(f"{SLICES}/{unique}")
    assert created["spec"] == body["spec"]
    assert created["metadata"]["generation"] == 1


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("1024Mi", "1Gi"),
        ("5Gi", "5Gi"),
        ("1000m", "1"),
        ("0.5", "500m"),
        ("1500", "1500"),
        ("2000", "2k"),
        ("1536Mi", "1536Mi"),
        ("1e3", "1e3"),
        ("100Ki", "100Ki"),
        ("0Gi", "0"),
        ("0.5Gi", "512Mi"),
    ],
)
def test_quantities_become_canonical(
    api: Api, unique: str, cleanup: Callable[[str], str], sent: str, kept: str
) -> None:
    body = resource_slice(unique, device(capacity={"memory": {"value": sent}}))
    created = api.post(SLICES, body).ok()
    cleanup(f"{SLICES}/{unique}")
    assert created["spec"]["devices"][0]["capacity"]["memory"]["value"] == kept


TAINT = {"key": "mig.dra.dev/xid", "effect": "NoExecute"}


# --- classes ------------------------------------------------------------------------------------
def device_class(name: str, **spec: Any) -> Obj:
    return {"metadata": {"name": name}, "spec": spec}
