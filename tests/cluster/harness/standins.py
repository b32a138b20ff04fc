"""Kubelets and plugins for nodes that have neither: slices appear and go as those make them."""

from __future__ import annotations

import contextlib
import queue
import random
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

from dra.gpu.geometry import Placement
from dra.gpu.inventory import ClaimRef, Instance, InstanceState, Inventory
from dra.gpu.mignode import to_mignode
from dra.gpu.names import MigDevice, parse_device
from tests.cluster.harness.background import Background
from tests.cluster.harness.pods import add_fake_node
from tests.cluster.scheduling.ledger import Piece, pieces

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dra.common.resources import Obj
    from hack.cluster.api import Api

_SLOWEST_SECONDS = 0.5
"""The longest that taking a slice away takes."""

_FORGOTTEN_SECONDS = 3.0
"""The longest that a node takes to see that a pod was deleted by force."""

_SURELY_KNOWN_SECONDS = 5.0
"""After so long everybody has seen what a node published."""

_END = "END"


@dataclass(slots=True)
class _Prepared:
    """A claim on its node since `at`.

    It is `unknown` when it was left behind so soon that the controller need not have seen it.
    """

    node: str
    made: tuple[Piece, ...]
    instances: dict[int, list[Instance]]
    pods: set[str] = field(default_factory=set)
    at: float = field(default_factory=time.monotonic)
    unknown: bool = False


class StandIns(Background):
    """Prepares the claims of pods that are bound to one of the nodes, and ends pods in order.

    As kubelet does: the slices go before the pod does, unless it is deleted by force. A slice that
    would overlap another is not made before that has gone; whoever sent it there although the
    MigNode told better is in `collisions`.

    Args:
        api: as the administrator.
        inventories: of the nodes, without slices; enter `pod` into a watcher of pods.
    """

    def __init__(self, api: Api, inventories: Iterable[Inventory], *, seed: int = 0) -> None:
        super().__init__("stand-ins", patience=30)
        self._api = api
        self._inventories = {i.node: i for i in inventories}
        self._random = random.Random(seed)
        self._pods: queue.SimpleQueue[tuple[str, Obj]] = queue.SimpleQueue()
        self._again: list[tuple[float, str, Obj]] = []
        self._prepared: dict[str, _Prepared] = {}
        self._started: set[str] = set()
        self.collisions: list[str] = []
        self.left_behind = 0
        self.most_prepared = 0

    @property
    def prepared(self) -> list[str]:
        """UIDs of the claims that have slices now."""
        return list(self._prepared)

    def pod(self, event: Obj) -> None:
        """An event of a watch of pods."""
        self._pods.put((event["type"], event["object"]))

    def __enter__(self) -> Self:
        for name, inventory in self._inventories.items():
            add_fake_node(self._api, name, cpu="64")
            body = to_mignode(inventory)
            self._api.create({k: v for k, v in body.items() if k != "status"})
            self._api.patch("MigNode", name, {"status": body["status"]}, subresource="status")
        return super().__enter__()

    def work(self) -> None:
        """Look at what the watch has brought, and at what is due."""
        with contextlib.suppress(queue.Empty):
            self._look_at(*self._pods.get(timeout=0.02))
        due = [each for each in self._again if each[0] <= time.monotonic()]
        self._again = [each for each in self._again if each not in due]
        for _, what, pod in due:
            self._look_at(what, pod)

    def _look_at(self, what: str, pod: Obj) -> None:
        uid = pod["metadata"]["uid"]
        if pod["spec"].get("nodeName") not in self._inventories:
            return
        if what == _END:
            self._unprepare(uid)
            self._api.delete("Pod", pod["metadata"]["name"], grace=0)
        elif what == "DELETED":
            held = [known for known in self._prepared.values() if uid in known.pods]
            for known in held:
                known.unknown = time.monotonic() < known.at + _SURELY_KNOWN_SECONDS
            if held:
                self.left_behind += 1
                self._later(_END, pod, longest=_FORGOTTEN_SECONDS)
        elif "deletionTimestamp" in pod["metadata"]:
            self._later(_END, pod)
        elif uid not in self._started:
            self._prepare(pod)

    def _later(self, what: str, pod: Obj, *, longest: float = _SLOWEST_SECONDS) -> None:
        pause = self._random.random() * longest
        self._again.append((time.monotonic() + pause, what, pod))

    def _prepare(self, pod: Obj) -> None:
        uid, node = pod["metadata"]["uid"], pod["spec"]["nodeName"]
        current = self._api.find("Pod", pod["metadata"]["name"])
        if current is None or "deletionTimestamp" in current["metadata"]:
            return
        complete = True
        for name in _claim_names(current):
            claim = self._api.find("ResourceClaim", name)
            if claim is None or uid not in _reserved_for(claim):
                complete = False
                continue
            known = self._prepared.get(claim["metadata"]["uid"])
            if known is not None:
                known.pods.add(uid)
            elif self._collides(claim, node):
                complete = False
            else:
                self._make(claim, node, uid)
        if complete:
            self._started.add(uid)
        else:
            self._later("AGAIN", pod)

    def _collides(self, claim: Obj, node: str) -> bool:
        wanted = pieces(claim, driver=self._inventories[node].driver)
        for uid, other in self._prepared.items():
            found = [(w, m) for w in wanted for m in other.made if w.overlaps(m)]
            if found and not other.unknown:
                name = claim["metadata"]["name"]
                self.collisions.append(f"{name} was sent to {found[0]}, where {uid} still is")
            if found:
                return True
        return False

    def _make(self, claim: Obj, node: str, pod_uid: str) -> None:
        metadata = claim["metadata"]
        inventory = self._inventories[node]
        ref = ClaimRef(metadata["namespace"], metadata["name"], metadata["uid"])
        instances: dict[int, list[Instance]] = {}
        for result in claim["status"]["allocation"]["devices"]["results"]:
            device = parse_device(result["device"])
            assert isinstance(device, MigDevice)
            gpu = inventory.gpu(device.gpu)
            profile = gpu.geometry.by_id(device.profile_id) if gpu and gpu.geometry else None
            assert profile is not None
            place = Placement(device.start, profile.memory_slices)
            made = Instance(
                place,
                InstanceState.PREPARED,
                profile_id=profile.id,
                profile=profile.name,
                claim=ref,
            )
            instances.setdefault(device.minor, []).append(made)
        made_pieces = pieces(claim, driver=inventory.driver)
        self._prepared[ref.uid] = _Prepared(node, made_pieces, instances, {pod_uid})
        self.most_prepared = max(self.most_prepared, len(self._prepared))
        self._publish(node)

    def _unprepare(self, pod_uid: str) -> None:
        nodes = set()
        for uid, known in list(self._prepared.items()):
            if pod_uid in known.pods:
                known.pods.discard(pod_uid)
                if not known.pods:
                    del self._prepared[uid]
                    nodes.add(known.node)
        for node in nodes:
            self._publish(node)

    def _publish(self, node: str) -> None:
        inventory = self._inventories[node]
        present = [p.instances for p in self._prepared.values() if p.node == node]
        gpus = tuple(
            replace(g, instances=tuple(i for made in present for i in made.get(g.minor, ())))
            for g in inventory.gpus
        )
        status = to_mignode(replace(inventory, gpus=gpus))["status"]
        self._api.patch("MigNode", node, {"status": status}, subresource="status")


def _claim_names(pod: Obj) -> list[str]:
    made = {
        s["name"]: s.get("resourceClaimName")
        for s in pod.get("status", {}).get("resourceClaimStatuses") or ()
    }
    entries = pod["spec"].get("resourceClaims") or ()
    names = [e.get("resourceClaimName") or made.get(e["name"]) for e in entries]
    return [name for name in names if name]


def _reserved_for(claim: Obj) -> list[str]:
    return [entry["uid"] for entry in claim.get("status", {}).get("reservedFor") or ()]
