"""Claims read as controller and command line read them."""

from __future__ import annotations

from typing import Any

from dra.cel.kinds import Kinds
from dra.cel.selectors import Selectors
from dra.claims.claims import read_claim
from dra.claims.classes import generated_classes, read_class
from dra.claims.reader import Reader
from dra.claims.reasons import Obstacle
from dra.claims.wants import ClaimWants
from dra.common.resources import Obj
from tests.controller.helpers.objects import DRIVER, device_class, versioned

CLASSES = [
    *generated_classes(DRIVER, ["1g.5gb", "1g.5gb+me", "3g.20gb"]),
    device_class("other", "device.driver == 'gpu.nvidia.com'"),
    device_class("lookalike", f"device.driver == 'x.{DRIVER}'"),
    device_class("handmade", f"device.driver == '{DRIVER}'"),
    device_class("broken", f"device.driver == '{DRIVER}' &&"),
]


def opaque(driver: str = DRIVER, **placement: Any) -> Obj:
    parameters = {
        "apiVersion": "mig.dra.dev/v1alpha1",
        "kind": "MigDeviceConfig",
        "placement": placement,
    }
    return {"opaque": {"driver": driver, "parameters": parameters}}


def read(obj: Obj, *more: Obj) -> ClaimWants | Obstacle | None:
    classes = {c["metadata"]["name"]: read_class(c, DRIVER) for c in [*CLASSES, *more]}
    known = versioned(obj)
    return Reader(DRIVER, Kinds(Selectors()), classes).read(read_claim(known))


def wanted(obj: Obj, *more: Obj) -> ClaimWants:
    found = read(obj, *more)
    assert isinstance(found, ClaimWants)
    return found


def refused(obj: Obj, *more: Obj) -> Obstacle:
    found = read(obj, *more)
    assert isinstance(found, Obstacle)
    return found
