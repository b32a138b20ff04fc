"""Pods that come and go at random, with claims of every size."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from tests.cluster.harness.pods import pod
from tests.cluster.harness.workload import SLEEPING

if TYPE_CHECKING:
    from dra.common.resources import Obj
    from hack.cluster.api import Api

GATE = {"name": "mig.dra.dev/allocation"}
SHARED = 8
"""Stand-alone claims, each for as many pods as happen to use it."""
PARENT = "mig.dra.dev/parentUUID"

SHAPES: dict[str, tuple[int, list[tuple[str, int]]]] = {
    "small": (30, [("mig-1g.5gb", 1)]),
    "memory": (10, [("mig-min-10gb", 1)]),
    "double": (15, [("mig-2g.10gb", 1)]),
    "third": (15, [("mig-3g.20gb", 1)]),
    "half": (8, [("mig-4g.20gb", 1)]),
    "whole": (4, [("mig-7g.40gb", 1)]),
    "pair": (8, [("mig-1g.5gb", 1), ("mig-2g.10gb", 1)]),
}
"""Name of a claim template to its weight, and to class and count of each request, on one GPU."""


class Churn:
    """Up to `slots` pods; every step creates or deletes one, whichever slot is drawn.

    Args:
        api: as the administrator.
        seed: of everything that is drawn.
        prefix: of the pods' names.
    """

    def __init__(self, api: Api, *, slots: int, seed: int, prefix: str = "churn") -> None:
        self._api = api
        self._prefix = prefix
        self._random = random.Random(seed)
        self._slots: list[str] = [""] * slots
        self._made = 0
        self.deleted = 0

    @property
    def created(self) -> int:
        """Pods made so far."""
        return self._made

    def prepare(self) -> None:
        """Makes the claim templates and the stand-alone claims."""
        for name, (_, requests) in SHAPES.items():
            self._api.create(_object("ResourceClaimTemplate", name, {"spec": _spec(requests)}))
        for number in range(SHARED):
            spec = _spec([("mig-1g.10gb", 1)])
            self._api.create(_object("ResourceClaim", f"shared-{number}", spec))

    def step(self) -> None:
        """Creates or deletes a pod."""
        slot = self._random.randrange(len(self._slots))
        if self._slots[slot]:
            self.delete(self._slots[slot], roughly=self._random.random() < 0.2)
            self._slots[slot] = ""
        else:
            self._slots[slot] = self.create()

    def create(self) -> str:
        """Makes one more pod; returns its name."""
        self._made += 1
        name = f"{self._prefix}-{self._made:04}"
        shape = self._random.choices(list(SHAPES), [weight for weight, _ in SHAPES.values()])[0]
        source = {"resourceClaimTemplateName": shape}
        if self._random.random() < 0.1:
            source = {"resourceClaimName": f"shared-{self._random.randrange(SHARED)}"}
        gates: dict[str, Any] = {}
        if self._random.random() < 0.3:
            gates["schedulingGates"] = [GATE]
        more = {"terminationGracePeriodSeconds": 5, **gates}
        self._api.create(pod(name, SLEEPING, claims={"gpu": source}, **more))
        return name

    def delete(self, name: str, *, roughly: bool = False) -> None:
        """Asks for the end of a pod, or takes it away without asking its node."""
        self._api.delete("Pod", name, grace=0 if roughly else None)
        self.deleted += 1


def _spec(requests: list[tuple[str, int]]) -> Obj:
    devices: Obj = {
        "requests": [
            {"name": f"r{n}", "exactly": {"deviceClassName": name, "count": count}}
            for n, (name, count) in enumerate(requests)
        ]
    }
    if len(requests) > 1:
        devices["constraints"] = [{"matchAttribute": PARENT}]
    return {"devices": devices}


def _object(kind: str, name: str, spec: Obj) -> Obj:
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": spec}
