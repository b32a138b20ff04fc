"""A generated fleet: what nodes, claims, pods and events of a busy cluster say, without a server.

Equal for equal arguments, so that what is seen of it can be compared.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from msgspec import structs

from cli.output import Output
from cli.page.content import Content
from cli.page.source import ClusterSource, explain_pod
from cli.session import Session, evaluator
from dra.cel.questions import Evaluator
from dra.claims.classes import generated_classes
from dra.common.resources import (
    DEVICE_CLASSES,
    EVENTS,
    LEASES,
    MIG_NODES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    Obj,
    ObjectKey,
    Resource,
)
from dra.gpu.geometry import EMPTY, Geometry, Occupant, Placement, Profile
from dra.gpu.inventory import ClaimRef, Drain, Gpu, Instance, InstanceState
from dra.gpu.mignode import to_mignode
from dra.gpu.names import MigDevice
from dra.kube.client import KubeApi
from dra.kube.lease import LEADERS
from dra.kube.reflector import Change
from dra.kube.timing import rfc3339
from tests.cli.page.scenes import CONDITION
from tests.controller.helpers.objects import (
    DRIVER,
    allocated,
    claim,
    inventory,
    node,
    pod,
    request,
)
from tests.dra.gpus import product_geometry

_PRODUCTS = ("A100-SXM4-40GB", "H100-80GB-HBM3")
_TEAMS = ("vision", "speech", "ads-ranking", "research", "platform", "fraud")
_APPS = ("trainer", "llm-serve", "notebook-anna", "embedder", "batch-eval", "finetune-7b")
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_REASONS = (
    ("WaitingForSlice", "no GPU has room for {}: its memory is held by other claims"),
    ("WaitingForQuota", "the namespace has its share of {} already"),
    ("WaitingForPodGroup", "2 of 4 pods of its group are there; {} each"),
)
"""Reasons why pods wait, the most frequent first."""


class Fleet:
    """Objects of a cluster by kind, with the answers of the page to them.

    One node of twenty has a GPU that is lost, another is drained, a third is silent.
    """

    def __init__(self, nodes: int, *, gpus: int = 8, full: float = 0.8, seed: int = 1) -> None:
        self.now = datetime.now(UTC)
        self._random = random.Random(seed)
        self.objects: dict[Resource, list[Obj]] = {kind: [] for kind in (MIG_NODES, NODES, PODS)}
        self.objects |= {kind: [] for kind in (RESOURCE_CLAIMS, EVENTS, DEVICE_CLASSES)}
        renewed = {"holderIdentity": "c-0", "renewTime": rfc3339(self.now)}
        held = {
            "metadata": {"namespace": LEADERS},
            "spec": {**renewed, "leaseDurationSeconds": 3600},
        }
        self.objects[LEASES] = [held]
        geometries = [product_geometry(name) for name in _PRODUCTS]
        profiles = [p.name for g in geometries for p in g.profiles]
        self.objects[DEVICE_CLASSES] += generated_classes(DRIVER, [*dict.fromkeys(profiles)])
        for number in range(1, nodes + 1):
            kind = number % 3 == 0
            self._add_node(number, gpus, _PRODUCTS[kind], geometries[kind], full)
        wanted = ("mig-7g.40gb", "mig-7g.80gb")[: 1 + (nodes > 2)]
        for number in range(max(2, min(60, nodes // 2))):
            self._add_waiting(number, self._random.choice(wanted))

    def _word(self, length: int) -> str:
        return "".join(self._random.choices(_LETTERS, k=length))

    def _add_node(
        self, number: int, gpus: int, product: str, geometry: Geometry, full: float
    ) -> None:
        name = f"gpu-node-{number}"
        made = [self._gpu(name, minor, product, geometry, full) for minor in range(gpus)]
        if number % 20 == 1 and len(made) > 1:
            why = "the GPU has fallen off the bus: it answers no call"
            made[1] = replace(made[1], unavailable=why, reason="GpuLost")
        state = inventory(name, *made)
        if number % 20 == 2:
            state = replace(state, drain=Drain(gpus=("gpu-0",), reason="firmware"))
        body = to_mignode(state)
        if number % 20 == 12:
            body["status"]["lastHeartbeatTime"] = rfc3339(self.now - timedelta(minutes=7))
        self.objects[MIG_NODES].append(body)
        self.objects[NODES].append(node(name))

    def _gpu(self, name: str, minor: int, product: str, geometry: Geometry, full: float) -> Gpu:
        usage, made = EMPTY, list[Instance]()
        load = self._random.choice((full, full, 1.0))
        plain = [p for p in geometry.profiles if not p.is_variant]
        while not made or self._random.random() < load:
            free = [(p, q) for p in plain for q in geometry.free_placements(usage, p)]
            if not free:
                break
            profile, at = self._random.choice(free)
            usage = geometry.add(usage, Occupant(at, profile.id))
            made.append(self._instance(name, minor, profile, at))
        return Gpu(
            minor=minor,
            uuid=f"GPU-{name}-{minor}",
            product_name=f"NVIDIA {product}",
            memory_mib=geometry.largest_first[0].memory_mib,
            mig_enabled=True,
            mig_pending=True,
            geometry=geometry,
            instances=tuple(made),
        )

    def _instance(self, name: str, minor: int, profile: Profile, at: Placement) -> Instance:
        app, team = self._random.choice(_APPS), self._random.choice(_TEAMS)
        who = f"{app}-{self._word(6)}-{self._word(5)}"
        body = claim(f"{who}-gpu", request("r", f"mig-{profile.name}"))
        body["metadata"] |= {"namespace": team, "uid": f"u-{who}"}
        short = profile.name.replace(".", "").replace("+", "-")
        device = str(MigDevice(minor, short, profile.id, at.start))
        body = allocated(body, name, device)
        body["status"]["reservedFor"] = [{"resource": "pods", "name": who, "uid": f"p-{who}"}]
        self.objects[RESOURCE_CLAIMS].append(body)
        ref = ClaimRef(team, f"{who}-gpu", f"u-{who}")
        odd = self._random.random() < 0.004
        state = InstanceState("reclaiming" if odd else "prepared")
        made = Instance(at, state, profile_id=profile.id, profile=profile.name, claim=ref)
        return structs.replace(made, uuid=f"MIG-{who}")

    def _add_waiting(self, number: int, profile: str) -> None:
        reason, message = _REASONS[min(2, int(abs(self._random.gauss(0, 0.9))))]
        team, name = self._random.choice(_TEAMS), f"finetune-13b-{self._word(6)}-{self._word(5)}"
        since = self.now - timedelta(seconds=20 * 1.15**number)
        told = {"type": CONDITION, "status": "False", "reason": reason}
        told |= {"message": message.format(profile), "lastTransitionTime": rfc3339(since)}
        body = claim(f"{name}-gpu", request("r", profile))
        body["metadata"] |= {"namespace": team, "uid": f"u-{name}"}
        waiting = pod(name, f"{name}-gpu")
        waiting["metadata"] |= {"namespace": team, "uid": f"p-{name}"}
        waiting["status"] = {"phase": "Pending", "conditions": [told]}
        self.objects[RESOURCE_CLAIMS].append(body)
        self.objects[PODS].append(waiting)
        event = {
            "metadata": {"name": f"e-{number}", "namespace": team},
            "involvedObject": {"kind": "Pod", "name": name, "namespace": team},
            "source": {"component": f"{DRIVER}/controller"},
            "lastTimestamp": rfc3339(since),
        }
        event |= {"reason": reason, "message": message.format(profile), "type": "Warning"}
        self.objects[EVENTS].append(event)

    def listed(self, resource: Resource, *, namespace: str = "", **selection: str) -> list[Obj]:
        """As ``KubeApi.list`` would list them; a selector selects all."""
        assert selection.keys() <= {"label_selector", "field_selector"}
        found = self.objects.get(resource, [])
        return [o for o in found if namespace in ("", o["metadata"].get("namespace", ""))]


class _Source:
    def __init__(self, fleet: Fleet, content: Content, asked: Evaluator) -> None:
        self._fleet, self._content, self._asked = fleet, content, asked
        out = Output(sys.stdout)
        self._session = Session(cast("KubeApi", None), out, "", lambda: datetime.now(UTC))

    def data(self, since: str) -> dict[str, Any]:
        return {**self._content.since(since), "hidden": [], "loading": [], "stale": []}

    def why(self, key: ObjectKey) -> dict[str, Any] | None:
        return explain_pod(self._session, key, self._fleet.listed, self._asked)


def fill(content: Content, fleet: Fleet) -> None:
    for kind in (MIG_NODES, RESOURCE_CLAIMS, PODS, EVENTS):
        for obj in fleet.objects[kind]:
            content.take(kind, Change("added", None, obj))


@contextmanager
def source_of(fleet: Fleet, content: Content) -> Iterator[ClusterSource]:
    """Source that answers for ``content``, into which the fleet is put."""
    fill(content, fleet)
    with evaluator() as asked:
        yield cast("ClusterSource", _Source(fleet, content, asked))
