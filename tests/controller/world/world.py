"""A cluster in which everything happens at random, with the parts of others played by a dictionary.

Pods have one or two claims, shared or their own; some are gated, more urgent, or of a gang, some
shun or seek others, are spread, or lack a volume, and some ask for what nothing serves;
kube-scheduler binds them or takes allocations back, nodes prepare slices and report them late,
nodes come and go, and requests and answers are lost. Whatever happens, no slice is given to two
claims.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Collection

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
from dra.gpu.inventory import ClaimRef
from dra.kube.errors import ConflictError, InvalidError, KubeError, UnavailableError
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.desk import Desk
from tests.controller.helpers.firstfit import PROTECTION, FirstFit
from tests.controller.helpers.objects import FINALIZER, claim, copied, gpu, inventory, pod, request
from tests.controller.world.worldchecks import (
    check_held_once,
    check_quotas,
    check_writers,
    set_quotas,
)
from tests.controller.world.worldnodes import GPUS, Nodes
from tests.controller.world.worldobjects import (
    HOPELESS,
    KEPT_APART,
    MANY,
    NEEDS,
    PARTS,
    PROFILES,
    claims_of,
    held,
    keeps_apart,
)

_CHANCE = 0.15
_STALE = ConflictError("stale", status=409)
_NO = InvalidError("no", status=422)
_SILENCE = UnavailableError("no answer")
_DELETED = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
_LIVE = ("Pending", "Running")
_QUOTAS = {
    "mig-1g.5gb": {"devices": 3},
    "mig-2g.10gb": {"memory": 25},
    "mig-3g.20gb": {"devices": 4, "memory": 60},
    "mig-7g.40gb": {"memory": 40},
    "mig-share.dra.dev": {"devices": 2},
}


class World:
    """Events drawn with ``seed``. ``told`` are, by kind, watch events on their way.

    In every third world classes have quotas. kube-scheduler allocates the nodes ``schedulers``; it
    knows no quotas, so that there are none then.
    """

    def __init__(
        self, seed: int, *, finalizer_at_creation: bool, schedulers: Collection[str] = ()
    ) -> None:
        self.draw = random.Random(seed)
        self.desk = Desk()
        self.born = finalizer_at_creation
        self.bench = Bench(send=self.desk.send, finalizer_at_creation=self.born)
        self.troubled = True
        self.numbers = itertools.count()
        self.told: dict[str, list[Callable[[], None]]] = {"claims": [], "pods": [], "nodes": []}
        api = self.api = self.bench.api
        self._stored = api.put
        api.put = self._put  # type: ignore[method-assign]
        self.list_volumes()
        self.nodes = Nodes(self.bench.cluster, self.draw, schedulers=schedulers)
        own = [inventory(name, *(gpu(n, name) for n in range(GPUS[name]))) for name in schedulers]
        self.scheduler = FirstFit(api, own)
        while not self.nodes.told:  # classes are of what some node has told
            self.nodes.be_seen_by(self.bench.cluster)
        self.told["nodes"] = self.nodes.told
        self.settle()
        self.quotas = _QUOTAS if seed % 3 == 0 and not schedulers else {}
        set_quotas(self.bench, self.quotas)
        api.refuse = lambda _: self._trouble(_STALE, _NO, _SILENCE)
        api.lost = self._meanwhile

    def list_volumes(self) -> None:
        """There is none: volumes that pods name are missing."""
        for resource in (PERSISTENT_VOLUMES, PERSISTENT_VOLUME_CLAIMS, STORAGE_CLASSES):
            self.bench.cluster.note_listed(resource)

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
        moves = [self._unreserve, self._bind, self._bind, self._go, self.nodes.come]
        if self.nodes.schedulers:
            often += [self._allocate, self._allocate]
        self.draw.choice([*often, *seldom, *moves, self._run, self._run])()
        self.check()

    def end(self) -> None:
        """No more trouble: everything comes to rest."""
        self.troubled = self.nodes.late = False
        while self.nodes.away:
            self.nodes.come()
        for name in GPUS:
            self.nodes.report(name)
        for _ in range(40):
            self.settle()
            self._unreserve()
            for _ in range(4):
                self._allocate()
                self._bind()
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
        """No two claims hold the same memory slice, but by shares that fit the slice together.

        Nor does a class give out more than its quota.
        """
        check_held_once(self.all("resourceclaims"))
        check_writers(self.all("resourceclaims"), self.nodes.schedulers)
        check_quotas(self.all("resourceclaims"), self.quotas)

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
            self.told["pods"].append(lambda: cluster.set_pod(copied(told)))
        elif resource is RESOURCE_CLAIMS:
            if "deletionTimestamp" in told["metadata"] and not told["metadata"].get("finalizers"):
                del self.api.objects[resource.plural, name]
                self.told["claims"].append(lambda: cluster.remove_claim(("default", name)))
            else:
                self.told["claims"].append(lambda: cluster.set_claim(copied(told)))
        return told

    def _trouble(self, *kinds: KubeError) -> KubeError | None:
        return self.draw.choice(kinds) if self.troubled and self.draw.random() < _CHANCE else None

    def _meanwhile(self, _: str) -> KubeError | None:
        """A request was made, and its answer is on the way."""
        if self.troubled and self.draw.random() < 0.5:
            self.draw.choice([self._erase, self._delete_claim, self._delete_pod, self._tell])()
            self._tell()
            self.look()
        return self._trouble(_STALE, _SILENCE)

    def look(self) -> None:
        """Whoever leads takes what was told."""
        self.bench.run()

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
            labels = KEPT_APART
            spec |= self.draw.choice(NEEDS)
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
        if self.draw.random() < 0.12:
            asked[0] = self.draw.choice(PARTS)
        if not alone and self.draw.random() < 0.1:
            asked[0] = self.draw.choice((*HOPELESS, MANY))
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

    def _allocate(self) -> None:
        """kube-scheduler tries pods until one gets its devices; it refuses the others."""
        pods = [(n, p) for n, p in self.live() if not p["spec"].get("nodeName")]
        for name, found in self.draw.sample(pods, len(pods)):
            claims = [self.api.objects.get(("resourceclaims", c)) for c in claims_of(found)]
            if found["spec"].get("schedulingGates") or all(c and held(c) for c in claims):
                continue
            if any(c is None or "deletionTimestamp" in c["metadata"] for c in claims):
                continue
            away = {*self.nodes.away, *(n for n in GPUS if self._shuns(found, n))}
            refused, given = self.scheduler.schedule(name, full=away)
            for each in given:
                self.api.put(RESOURCE_CLAIMS, each)
            if given:
                return
            if refused["status"] != found["status"]:
                self.api.put(PODS, refused)

    def _unreserve(self) -> None:
        """Reservations of pods that have ended are gone, and their own claims are deleted.

        What kube-scheduler allocated, kube-controller-manager takes back.
        """
        live = {p["metadata"]["uid"] for _, p in self.live()}
        for _, obj in self.all("resourceclaims"):
            reserved = (obj.get("status") or {}).get("reservedFor") or []
            left = [c for c in reserved if c["uid"] in live]
            owners = {o["uid"] for o in obj["metadata"].get("ownerReferences", ())}
            ends = bool(owners) and not owners & live and not left
            if left != reserved or (ends and "deletionTimestamp" not in obj["metadata"]):
                status: Obj = {"reservedFor": left or None} if reserved else {}
                metadata: Obj = _DELETED if ends else {}
                kept = [f for f in obj["metadata"].get("finalizers", ()) if f != PROTECTION]
                if not left and len(kept) < len(obj["metadata"].get("finalizers", ())):
                    status["allocation"] = None
                    metadata = {**metadata, "finalizers": kept}
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
                or where & self.nodes.away
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
                    place = (target, device.minor, device.start, ref.uid)
                    self.nodes.slices[place] = profile, ref
            self._change(PODS, found, spec={"nodeName": target}, status={"phase": "Running"})
            self.nodes.report(target)
            return

    def _shuns(self, found: Obj, target: str) -> bool:
        """True if a pod may not go to a node, as kube-scheduler sees it."""
        if found["spec"].get("volumes"):
            return True
        there = [p for _, p in self.live() if p["spec"].get("nodeName") == target]
        apart = [p for p in there if p["metadata"]["labels"] == KEPT_APART]
        mine = found["metadata"]["labels"] == KEPT_APART
        shunned = mine and any(map(keeps_apart, apart))
        return shunned or (keeps_apart(found) and bool(apart))

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
        self.nodes.unprepare(gone)
        if gone:
            self.nodes.report(ended["spec"]["nodeName"])

    def _go(self) -> None:
        """A node is lost, and its pods with it."""
        name = self.nodes.go()
        if name:
            for pod_name, found in self.all("pods"):
                if found["spec"].get("nodeName") == name:
                    self._remove(pod_name, found)
            self.nodes.tell_gone(name)

    def _remove(self, name: str, gone: Obj) -> None:
        self._unprepare(gone)
        del self.api.objects["pods", name]
        self.told["pods"].append(lambda: self.bench.cluster.remove_pod(("default", name)))

    def _change(self, resource: Resource, obj: Obj, **parts: Obj) -> None:
        """Change fields of parts of an object; None removes one."""
        changed = copied(obj)
        for part, fields in parts.items():
            merged = {**changed.get(part, {}), **fields}
            changed[part] = {k: v for k, v in merged.items() if v is not None}
        self.api.put(resource, changed)
