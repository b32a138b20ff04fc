"""Slices that claims share, for the tests of the controller."""

from __future__ import annotations

from typing import Any

from dra.common.resources import Obj
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import allocated, claim, gpu, mignode, request, versioned

SHARE = "mig-share.dra.dev"
PART = "gpu-0-mig-1g5gb-19-0-share"


def shared(minor: int = 0, shares: int = 4, **fields: Any) -> Any:
    return gpu(minor, slice_shares=shares, **fields)


def asking(memory: str = "", cores: str = "", *selectors: str) -> Obj:
    amounts = {k: v for k, v in (("memory", memory), ("cores", cores)) if v}
    more = {"capacity": {"requests": amounts}} if amounts else {}
    return request("r", SHARE, *selectors, **more)


def configured(kind: str = "MigDeviceConfig", **parameters: Any) -> list[Obj]:
    head = {"apiVersion": "mig.dra.dev/v1alpha1", "kind": kind}
    return [{"opaque": {"driver": "mig.dra.dev", "parameters": head | parameters}}]


def bench(*gpus: Any) -> Bench:
    made = Bench("node-a")
    made.cluster.set_mignode(mignode("node-a", *(gpus or (shared(),))))
    return made


def given(known: Any, name: str, device: str, node: str = "node-a") -> None:
    known.set_claim(versioned(allocated(claim(name), node, device)))
