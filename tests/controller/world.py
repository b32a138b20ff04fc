"""A cluster in which everything happens at random, with the parts of others played by a dictionary.

Pods have one or two claims, shared or their own; some are gated, more urgent, or of a gang, some
shun or seek others, are spread, or lack a volume, and some ask for what nothing serves;
kube-scheduler binds them or takes allocations back, nodes prepare slices and report them late,
nodes come and go, and requests and answers are lost. Whatever happens, no slice is given to two
claims.
"""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable
from functools import partial

from dra.common.resources import (
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    RESOURCE_CLAIMS,
    STORAGE_CLASSES,
    Obj,
    Resource,
)
from dra.gangs.membership import COUNT_LABEL, NAME_LABEL
from dra.gpu.geometry import Placement, Profile
from dra.gpu.inventory import ClaimRef, Gpu, Instance, InstanceState
from dra.gpu.names import MigDevice, parse_device
from dra.kube.errors import ConflictError, InvalidError, KubeError, UnavailableError
from tests.controller.bench import Bench
from tests.controller.desk import Desk
from tests.controller.objects import (
    FINALIZER,
    claim,
    first_available,
    gpu,
    mignode,
    node,
    pod,
    request,
)
from tests.dra.gpus import A100

GPUS = {"node-a": 1, "node-b": 1}
PROFILES = ("1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb")
_CHANCE = 0.15
_STALE = ConflictError("stale", status=409)
_NO = InvalidError("no", status=422)
_SILENCE = UnavailableError("no answer")
_DELETED = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
_LIVE = ("Pending", "Running")
_KEPT_APART = {"app": "apart"}
_TERM = {
    "topologyKey": "kubernetes.io/hostname",
    "labelSelector": {"matchLabels": _KEPT_APART},
}
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_NEEDS: tuple[Obj, ...] = (
    {"affinity": {"podAntiAffinity": {_REQUIRED: [_TERM]}}},
    {"affinity": {"podAffinity": {_REQUIRED: [_TERM]}}},
    {
        "topologySpreadConstraints": [
            {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", **_TERM},
        ]
    },
    {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "missing"}}]},
)
"""Needs of pods besides room; the volume's claim is never made."""
HOPELESS: tuple[Obj, ...] = (
    request("r", "mig-1g.5gb", "device.nonsense("),
    request("r", "mig-1g.5gb", "device.attributes['mig.dra.dev'].nothing == 'x'"),
    request("r", "mig-1g.5gb", "device.attributes['mig.dra.dev'].parentUUID == 'GPU-nowhere'"),
    request("r", "mig-1g.5gb", count=33),
    request("r", "mig-9g.99gb"),
)
"""Requests that are faulty, or that nothing serves."""
_MANY = first_available(
    "r", *((f"a{n}", f"mig-{PROFILES[-1 - n % 4]}", {"count": 8 - n}) for n in range(8))
)


class World:
    """What happens is drawn with ``seed``. ``told`` are, by kind, watch events on their way."""

    def __init__(self, seed: int, *, finalizer_at_creation: bool) -> None:
        self.draw = random.Random(seed)
        self.desk = Desk()
        self.born = finalizer_at_creation
        self.bench = Bench(outbox=self.desk, finalizer_at_creation=self.born)
        self.troubled = True
        self.numbers = itertools.count()
        self.told: dict[str, list[Callable[[], None]]] = {"claims": [], "pods": [], "nodes": []}
        self.away: set[str] = set()
        self.slices: dict[tuple[str, int, int], tuple[Profile, ClaimRef]] = {}
        """What the nodes have prepared, by node, GPU and start."""
        api = self.api = self.bench.api
        self._stored = api.put
        api.put = self._put  # type: ignore[method-assign]
        for resource in (PERSISTENT_VOLUMES, PERSISTENT_VOLUME_CLAIMS, STORAGE_CLASSES):
            self.bench.cluster.volumes.note_listed(resource)
        for name in GPUS:
            self.bench.cluster.set_node(node(name, cpu="1"))
            self._report(name)
        self.settle()
        api.refuse = lambda _: self._trouble(_STALE, _NO, _SILENCE)
        api.lost = self._meanwhile

    # -- what happens

    def act(self) -> None:
        """Have one thing happen."""
        often = [
            self._create,
            self._create_alone_or_gang,
            self._answer,
            self._answer,
            self._tell,
            self._tell,
            self._finish,
        ]
        seldom = [self._erase, self._delete_pod, self._fail, self._delete_claim]
        moves = [self._unreserve, self._bind, self._bind, self._go, self._come]
        self.draw.choice([*often, *seldom, *moves, self._run, self._run])()
        self.check()

    def end(self) -> None:
        """No more trouble: everything comes to rest."""
        self.troubled = False
        while self.away:
            self._come()
        for name in GPUS:
            self._report(name)
        for _ in range(40):
            self.settle()
            self._unreserve()
            self.settle()
            self.bench.run(seconds=10.0)
            self.check()
        self.settle()

    def settle(self) -> None:
        """Have all answers and events arrive."""
        while self.desk.jobs or any(self.told.values()):
            self.desk.work_off()
            for events in self.told.values():
                while events:
                    events.pop(0)()
            self.bench.run()
        self.bench.run()

    def check(self) -> None:
        """No two claims hold the same memory slice."""
        taken: dict[tuple[str, int, int], str] = {}
        for name, obj in self.all("resourceclaims"):
            for where, device, profile in held(obj):
                for piece in range(device.start, device.start + profile.memory_slices):
                    place = (where, device.minor, piece)
                    assert place not in taken, f"{name} and {taken[place]} both have {place}"
                    taken[place] = name

    def all(self, plural: str) -> list[tuple[str, Obj]]:
        """The objects of a kind by name."""
        return [(n, o) for (kind, n), o in self.api.objects.items() if kind == plural]

    def live(self) -> list[tuple[str, Obj]]:
        """The pods that may use their claims."""
        return [(n, p) for n, p in self.all("pods") if p["status"]["phase"] in _LIVE]

    def _put(self, resource: Resource, obj: Obj) -> Obj:
        told, name = self._stored(resource, obj), obj["metadata"]["name"]
        cluster = self.bench.cluster
        if resource is PODS:
            self.told["pods"].append(lambda: cluster.set_pod(copy.deepcopy(told)))
        elif resource is RESOURCE_CLAIMS:
            if "deletionTimestamp" in told["metadata"] and not told["metadata"].get("finalizers"):
                del self.api.objects[resource.plural, name]
                self.told["claims"].append(lambda: cluster.remove_claim(("default", name)))
            else:
                self.told["claims"].append(lambda: cluster.set_claim(copy.deepcopy(told)))
        return told

    def _trouble(self, *kinds: KubeError) -> KubeError | None:
        return self.draw.choice(kinds) if self.troubled and self.draw.random() < _CHANCE else None

    def _meanwhile(self, _: str) -> KubeError | None:
        """A request was made, and its answer is on the way."""
        if self.troubled and self.draw.random() < 0.5:
            self.draw.choice([self._erase, self._delete_claim, self._delete_pod, self._tell])()
            self._tell()
            self.bench.run()
        return self._trouble(_STALE, _SILENCE)

    def _run(self) -> None:
        self.bench.run(seconds=self.draw.choice((0.0, 0.05, 1.0, 6.0)))

    def _answer(self) -> None:
        if self.desk.jobs:
            self.desk.jobs.pop(self.draw.randrange(min(4, len(self.desk.jobs))))()

    def _tell(self) -> None:
        for _ in range(self.draw.randrange(1, 4)):
            if events := self.draw.choice([*self.told.values()]):
                events.pop(0)()

    # -- people

    def _create_alone_or_gang(self) -> None:
        """A pod, or a gang: now and then without its last pod, or with one more than it needs."""
        if self.draw.random() < 0.7:
            self._create()
            return
        gang, size = f"g{next(self.numbers)}", self.draw.choice((2, 2, 3))
        for _ in range(size + self.draw.choice((-1, 0, 0, 0, 1))):
            self._create({NAME_LABEL: gang, COUNT_LABEL: str(size)})

    def _create(self, labels: dict[str, str] | None = None) -> None:
        number = next(self.numbers)
        several = range(self.draw.choice((1, 1, 2)))
        names = {self._claim(number, n, alone=labels is not None) for n in several}
        spec: Obj = {"priority": 10} if self.draw.random() < 0.2 else {}
        if self.draw.random() < 0.3:
            spec["schedulingGates"] = [{"name": FINALIZER}]
        if labels is None and self.draw.random() < 0.2:
            labels = _KEPT_APART
            spec |= self.draw.choice(_NEEDS)
        created = pod(f"p{number}", *sorted(names), cpu=self.draw.choice(("100m", "300m")), **spec)
        stamp = f"2026-01-01T00:{number // 60:02}:{number % 60:02}Z"
        created["metadata"]["creationTimestamp"] = stamp
        created["metadata"]["labels"] = labels or {}
        self.api.put(PODS, {**created, "status": {"phase": "Pending"}})

    def _claim(self, number: int, index: int, *, alone: bool) -> str:
        """A claim for a new pod: one that others have, one of its own, or one that stays.

        ``alone``: not one that others have, nor do others come to have it.
        """
        shared = [
            n
            for n, o in self.all("resourceclaims")
            if not {"deletionTimestamp", "ownerReferences", "labels"} & o["metadata"].keys()
        ]
        if not alone and shared and self.draw.random() < 0.2:
            return self.draw.choice(shared)
        asked = [request("r", f"mig-{self.draw.choice(PROFILES)}"), request("s")]
        if not alone and self.draw.random() < 0.1:
            asked[0] = self.draw.choice((*HOPELESS, _MANY))
        body = claim(f"c{number}-{index}", *asked[: self.draw.choice((1, 1, 1, 2))])
        if alone:
            body["metadata"]["labels"] = {"alone": "true"}
        if self.born:
            body["metadata"]["finalizers"] = [FINALIZER]
        if self.draw.random() < 0.4:
            owner = {"kind": "Pod", "name": f"p{number}", "uid": f"uid-p{number}"}
            body["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
        self.api.put(RESOURCE_CLAIMS, body)
        return str(body["metadata"]["name"])

    def _delete_claim(self) -> None:
        claims = self.all("resourceclaims")
        if claims and self.draw.random() < 0.4:
            self._change(RESOURCE_CLAIMS, self.draw.choice(claims)[1], metadata=_DELETED)

    def _delete_pod(self) -> None:
        if pods := self.all("pods"):
            self._remove(*self.draw.choice(pods))

    def _fail(self) -> None:
        pods = [p for _, p in self.all("pods") if p["status"]["phase"] == "Pending"]
        if pods and self.draw.random() < 0.3:
            self._change(PODS, self.draw.choice(pods), status={"phase": "Failed"})

    # -- kube-scheduler, kube-controller-manager and the nodes

    def _erase(self) -> None:
        """The scheduler takes an allocation back."""
        bound = {c for _, p in self.live() if p["spec"].get("nodeName") for c in claims_of(p)}
        claims = [o for n, o in self.all("resourceclaims") if n not in bound and held(o)]
        if claims:
            found = self.draw.choice(claims)
            self._change(RESOURCE_CLAIMS, found, status={"allocation": None, "reservedFor": None})

    def _unreserve(self) -> None:
        """What pods had reserved that have ended is free, and their own claims are deleted."""
        live = {p["metadata"]["uid"] for _, p in self.live()}
        for _, obj in self.all("resourceclaims"):
            reserved = (obj.get("status") or {}).get("reservedFor") or []
            left = [c for c in reserved if c["uid"] in live]
            owners = {o["uid"] for o in obj["metadata"].get("ownerReferences", ())}
            ends = bool(owners) and not owners & live and not left
            if left != reserved or (ends and "deletionTimestamp" not in obj["metadata"]):
                status = {"reservedFor": left or None} if reserved else {}
                metadata = _DELETED if ends else {}
                self._change(RESOURCE_CLAIMS, obj, status=status, metadata=metadata)

    def _bind(self) -> None:
        """A pod that has all its claims on one node is bound there and started."""
        pods = [(n, p) for n, p in self.live() if not p["spec"].get("nodeName")]
        for name, found in self.draw.sample(pods, len(pods)):
            claims = [self.api.objects.get(("resourceclaims", c), {}) for c in claims_of(found)]
            where = {place[0] for c in claims for place in held(c)[:1]}
            whole = all(held(c) and "deletionTimestamp" not in c["metadata"] for c in claims)
            if (
                found["spec"].get("schedulingGates")
                or not whole
                or len(where) > 1
                or where & self.away
                or self._shuns(found, *where)
            ):
                continue
            (target,) = where
            consumer = {"resource": "pods", "name": name, "uid": found["metadata"]["uid"]}
            for obj in claims:
                reserved = obj["status"].get("reservedFor") or []
                if consumer["uid"] not in {c["uid"] for c in reserved}:
                    status = {"reservedFor": [*reserved, consumer]}
                    self._change(RESOURCE_CLAIMS, obj, status=status)
                metadata = obj["metadata"]
                ref = ClaimRef("default", metadata["name"], metadata["uid"])
                for _, device, profile in held(obj):
                    self.slices[target, device.minor, device.start] = profile, ref
            self._change(PODS, found, spec={"nodeName": target}, status={"phase": "Running"})
            self._report(target)
            return

    def _shuns(self, found: Obj, target: str) -> bool:
        """True if a pod may not go to a node, as kube-scheduler sees it."""
        if found["spec"].get("volumes"):
            return True
        there = [p for _, p in self.live() if p["spec"].get("nodeName") == target]
        apart = [p for p in there if p["metadata"]["labels"] == _KEPT_APART]
        mine = found["metadata"]["labels"] == _KEPT_APART
        shunned = mine and any(map(_keeps_apart, apart))
        return shunned or (_keeps_apart(found) and bool(apart))

    def _finish(self) -> None:
        running = [p for _, p in self.all("pods") if p["status"]["phase"] == "Running"]
        if running:
            ended = self.draw.choice(running)
            self._unprepare(ended)
            self._change(PODS, ended, status={"phase": self.draw.choice(("Succeeded", "Failed"))})

    def _unprepare(self, ended: Obj) -> None:
        others = [p for _, p in self.live() if p is not ended and p["spec"].get("nodeName")]
        kept = {name for p in others for name in claims_of(p)}
        gone = set(claims_of(ended)) - kept if ended["spec"].get("nodeName") else set()
        self.slices = {k: v for k, v in self.slices.items() if v[1].name not in gone}
        if gone:
            self._report(ended["spec"]["nodeName"])

    def _go(self) -> None:
        """A node is lost, and its pods with it."""
        names = sorted(GPUS.keys() - self.away)
        if len(names) == 1 or self.draw.random() > 0.15:
            return
        name, cluster = self.draw.choice(names), self.bench.cluster
        self.away.add(name)
        self.slices = {k: v for k, v in self.slices.items() if k[0] != name}
        for pod_name, found in self.all("pods"):
            if found["spec"].get("nodeName") == name:
                self._remove(pod_name, found)
        self.told["nodes"].append(lambda: cluster.remove_node(name))
        if self.draw.random() < 0.5:
            self.told["nodes"].append(lambda: cluster.remove_mignode(name))

    def _come(self) -> None:
        if self.away:
            name, cluster = min(self.away), self.bench.cluster
            self.away.remove(name)
            self.told["nodes"].append(lambda: cluster.set_node(node(name, cpu="1")))
            self._report(name)

    def _report(self, name: str) -> None:
        """A node tells what it has; now and then it does not, before something else happens."""
        if name in self.away or (self.troubled and self.draw.random() < 0.2):
            return
        told = mignode(name, *(self._gpu(name, minor) for minor in range(GPUS[name])))
        self.told["nodes"].append(partial(self.bench.cluster.set_mignode, told))

    def _gpu(self, name: str, minor: int) -> Gpu:
        prepared = tuple(
            Instance(
                Placement(start, profile.memory_slices),
                InstanceState.PREPARED,
                profile_id=profile.id,
                profile=profile.name,
                claim=ref,
            )
            for (where, number, start), (profile, ref) in self.slices.items()
            if (where, number) == (name, minor)
        )
        return gpu(minor, name, instances=prepared)

    def _remove(self, name: str, gone: Obj) -> None:
        self._unprepare(gone)
        del self.api.objects["pods", name]
        self.told["pods"].append(lambda: self.bench.cluster.remove_pod(("default", name)))

    def _change(self, resource: Resource, obj: Obj, **parts: Obj) -> None:
        """Change fields of parts of an object; None removes one."""
        changed = copy.deepcopy(obj)
        for part, fields in parts.items():
            merged = {**changed.get(part, {}), **fields}
            changed[part] = {k: v for k, v in merged.items() if v is not None}
        self.api.put(resource, changed)


def _keeps_apart(obj: Obj) -> bool:
    return "podAntiAffinity" in obj["spec"].get("affinity", {})


def held(obj: Obj) -> list[tuple[str, MigDevice, Profile]]:
    """What a claim is allocated: node, device and profile of each slice."""
    allocation = (obj.get("status") or {}).get("allocation")
    if not allocation:
        return []
    (term,) = allocation["nodeSelector"]["nodeSelectorTerms"]
    where, found = term["matchFields"][0]["values"][0], []
    for result in allocation["devices"]["results"]:
        device = parse_device(result["device"])
        assert isinstance(device, MigDevice)
        profile = A100.by_id(device.profile_id)
        assert profile is not None
        found.append((where, device, profile))
    return found


def claims_of(obj: Obj) -> list[str]:
    """The names of a pod's claims."""
    return [c["resourceClaimName"] for c in obj["spec"]["resourceClaims"]]
