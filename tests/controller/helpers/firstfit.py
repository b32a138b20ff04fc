"""kube-scheduler as it allocates: the first device of the published order that is free."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dra.claims.claims import SCHEDULER_FINALIZER
from dra.common.resources import PODS, RESOURCE_CLAIMS, Obj, at
from dra.gpu.geometry import Occupant
from dra.gpu.inventory import Inventory
from dra.gpu.names import class_name
from dra.resourceslices.partitions import Partition, offered
from tests.controller.helpers.fakeapi import FakeApi, own_allocation
from tests.controller.helpers.objects import allocated, copied

PROTECTION = SCHEDULER_FINALIZER


class FirstFit:
    """Nodes by their published lists; objects are those of ``api``. It tells nobody."""

    def __init__(self, api: FakeApi, inventories: Iterable[Inventory]) -> None:
        self._api = api
        self.lists = {i.node: offered(i, {}, taints=True).partitions for i in inventories}

    def schedule(self, name: str, *, full: Iterable[str] = ()) -> tuple[Obj, list[Obj]]:
        """One try for a pod: the pod as it is then, and its claims where they are allocated.

        The nominated node is tried first. Nothing fits on nodes that are ``full``.
        """
        pod = copied(self._api.get(PODS, name))
        assert not pod["spec"].get("schedulingGates"), f"{name} is gated"
        told = pod.setdefault("status", {})
        first = told.get("nominatedNodeName", "")
        for node in sorted(self.lists.keys() - set(full), key=lambda n: (n != first, n)):
            claims = self._allocate(pod, node)
            if claims:
                pod["spec"]["nodeName"] = told["nominatedNodeName"] = node
                return pod, claims
        told.pop("nominatedNodeName", None)
        others = [c for c in at(told, "conditions") if c["type"] != "PodScheduled"]
        refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        told["conditions"] = [*others, refused]
        return pod, []

    def _allocate(self, pod: Obj, node: str) -> list[Obj]:
        names = [c["resourceClaimName"] for c in pod["spec"]["resourceClaims"]]
        taken, found = [*self._taken(node)], []
        for claim in (copied(self._api.get(RESOURCE_CLAIMS, n)) for n in names):
            if allocation := at(claim, "status", "allocation", default=None):
                if _node_of(allocation) != node:
                    return []
                found.append(claim)
                continue
            devices = []
            for wanted in claim["spec"]["devices"]["requests"]:
                if not wanted.get("exactly", {}).keys() <= {"deviceClassName"}:
                    return []  # more than this stand-in understands
                asked = wanted.get("exactly", {}).get("deviceClassName")
                free = self._first(node, asked, taken)
                if free is None:
                    return []
                devices.append(free.name)
                taken.append(free)
            given = allocated(claim, node, *devices, finalizer=False)
            finalizers = (*claim["metadata"].get("finalizers", ()), PROTECTION)
            given["metadata"]["finalizers"] = [*dict.fromkeys(finalizers)]
            consumer = {"resource": "pods", "uid": pod["metadata"]["uid"]}
            given["status"]["reservedFor"] = [{**consumer, "name": pod["metadata"]["name"]}]
            own_allocation(given, "kube-scheduler")
            found.append(given)
        return found

    def _first(self, node: str, asked: str | None, taken: list[Partition]) -> Partition | None:
        for each in self.lists[node]:
            profile, place, geometry = each.profile, each.placement, each.gpu.geometry
            if profile is None or place is None or geometry is None or each.shared:
                continue
            if class_name(profile.name) != asked:
                continue
            here = [t for t in taken if t.gpu.uuid == each.gpu.uuid]
            occupants = [
                Occupant(t.placement, t.profile.id) for t in here if t.placement and t.profile
            ]
            if geometry.fits(geometry.usage(occupants), profile, place):
                return each
        return None

    def _taken(self, node: str) -> Iterator[Partition]:
        by_name = {each.name: each for each in self.lists[node]}
        for (plural, _), obj in self._api.objects.items():
            allocation = at(obj, "status", "allocation", default=None)
            if plural != RESOURCE_CLAIMS.plural or not allocation:
                continue
            if _node_of(allocation) == node:
                yield from (by_name[r["device"]] for r in allocation["devices"]["results"])


def _node_of(allocation: Obj) -> str:
    (term,) = allocation["nodeSelector"]["nodeSelectorTerms"]
    return str(term["matchFields"][0]["values"][0])
