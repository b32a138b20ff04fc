"""An API server of one dictionary, and the errors of its writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from dra.common.resources import PODS, RESOURCE_CLAIMS, Obj, Resource
from dra.kube.client import ObjectList, PatchContent
from dra.kube.errors import ConflictError, InvalidError, KubeError, ObjectNotFoundError
from dra.kube.http import Keep
from tests.controller.helpers.objects import copied, versioned


class FakeApi:
    """Stores claims, pods and classes; ``refuse`` may raise instead of a write.

    ``lost`` answers are written all the same.
    """

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Obj] = {}
        self.writes: list[str] = []
        self.evicted: list[Obj] = []
        self.refuse: Callable[[str], KubeError | None] = lambda _: None
        self.lost: Callable[[str], KubeError | None] = lambda _: None

    def put(self, resource: Resource, obj: Obj) -> Obj:
        stored = versioned(obj)
        self.objects[resource.plural, obj["metadata"]["name"]] = stored
        return stored

    def get(self, resource: Resource, name: str) -> Obj:
        return self.objects[resource.plural, name]

    def without_stale_reservations(self) -> list[Obj]:
        """The claims that are reserved for pods which are gone, as they are to be."""
        present = {o["metadata"]["uid"] for (kind, _), o in self.objects.items() if kind == "pods"}
        found = []
        for (plural, _), obj in self.objects.items():
            reserved = obj.get("status", {}).get("reservedFor", [])
            left = [c for c in reserved if c["uid"] in present]
            if plural == RESOURCE_CLAIMS.plural and left != reserved:
                status = {k: v for k, v in obj["status"].items() if k != "reservedFor"}
                status |= {"reservedFor": left} if left else {}
                found.append({**copied(obj), "status": status})
        return found

    def patch(
        self,
        resource: Resource,
        name: str,
        body: Any,
        *,
        namespace: str = "",
        subresource: str = "",
        content: PatchContent = "merge",
        field_manager: str = "",
    ) -> Obj:
        what = f"{resource.plural}/{subresource}" if subresource else resource.plural
        if error := self.refuse(what):
            raise error
        found = self.objects.get((resource.plural, name))
        if found is None:
            raise ObjectNotFoundError(f"{name} not found", status=404)
        obj = copied(found)
        if content == "json":
            _take_steps(obj, body)
        elif content == "strategic":
            _set_conditions(obj, body["status"].get("conditions", []))
            _set_names(obj, body["status"].get("resourceClaimStatuses", []))
            obj["status"] |= {k: v for k, v in body["status"].items() if isinstance(v, str)}
        else:
            _merge(obj, body)
            if obj == found:
                return obj
            if "reservedFor" in obj.get("status", {}) and "allocation" not in obj["status"]:
                raise InvalidError(f"{name} is reserved", status=422)
        if "status" in body and resource is RESOURCE_CLAIMS:
            own_allocation(obj, field_manager)
        stored = self.put(resource, obj)
        self.writes.append(what)
        if error := self.lost(what):
            raise error
        return stored

    def create(
        self, resource: Resource, body: Obj, *, subresource: str = "", field_manager: str = ""
    ) -> Obj:
        """Take note of an eviction; nothing else is created."""
        assert (resource, subresource) == (PODS, "eviction")
        if error := self.refuse("pods/eviction") or self.refuse(
            f"evict {body['metadata']['name']}"
        ):
            raise error
        if "dryRun" not in body["deleteOptions"]:
            self.evicted.append(body)
        return body

    def delete(self, resource: Resource, name: str, *, namespace: str = "", uid: str = "") -> None:
        if error := self.refuse(f"delete {resource.plural}"):
            raise error
        found = self.objects.get((resource.plural, name))
        if found is None:
            raise ObjectNotFoundError(f"{name} not found", status=404)
        if uid != found["metadata"]["uid"]:
            raise ConflictError("precondition failed: UID", status=409)
        del self.objects[resource.plural, name]

    def list(self, resource: Resource, *, keep: Keep) -> ObjectList:
        found = [o for (plural, _), o in self.objects.items() if plural == resource.plural]
        kept = (keep(msgspec.Raw(msgspec.json.encode(o))) for o in found)
        return ObjectList([o for o in kept if o is not None], "1")

    def apply(
        self,
        resource: Resource,
        body: Obj,
        *,
        field_manager: str,
        subresource: str = "",
        force: bool = True,
    ) -> Obj:
        if error := self.refuse(resource.plural):
            raise error
        self.writes.append(resource.plural)
        return self.put(resource, body)


def once(what: str, error: KubeError) -> Callable[[str], KubeError | None]:
    """Refuses the first write of that kind."""
    left = [error]
    return lambda write: left.pop() if left and write == what else None


def from_the_second(what: str, error: KubeError) -> Callable[[str], KubeError | None]:
    """Refuses all writes of that kind but the first."""
    seen: list[str] = []

    def refuse(write: str) -> KubeError | None:
        seen.append(write)
        return error if write == what and seen.count(what) > 1 else None

    return refuse


def _merge(obj: Obj, body: Obj) -> None:
    """Apply a merge patch of metadata and status, and refuse it as the API server does."""
    known, metadata = obj["metadata"], dict(body["metadata"])
    if metadata.pop("resourceVersion", known["resourceVersion"]) != known["resourceVersion"]:
        raise ConflictError(f"{known['name']} has been modified", status=409)
    if metadata.pop("uid") != known["uid"]:
        causes = [{"field": "metadata.uid", "message": "field is immutable"}]
        raise InvalidError("metadata.uid: immutable", status=422, details={"causes": causes})
    for field in ("annotations", "labels"):
        if added := metadata.pop(field, None):
            known[field] = known.get(field, {}) | added
    known |= {k: v for k, v in metadata.items() if v is not None}
    for key in [k for k, v in metadata.items() if v is None]:
        known.pop(key, None)
    if "status" in body:
        status = {**obj.get("status", {}), **body["status"]}
        obj["status"] = {k: v for k, v in status.items() if v is not None}


def own_allocation(obj: Obj, manager: str) -> None:
    """Say of a claim that ``manager`` wrote its allocation, if it has one."""
    fields: Obj = {"f:status": {"f:allocation": {}}}
    entry = {"manager": manager, "subresource": "status", "fieldsV1": fields}
    allocated = "allocation" in obj.get("status", {})
    obj["metadata"]["managedFields"] = [entry] if allocated else []


def _take_steps(obj: Obj, steps: list[Obj]) -> None:
    """Apply a JSON patch; what is tested and missing counts as null, as for the API server."""
    for step in steps:
        where: Any = obj
        *parents, last = step["path"].split("/")[1:]
        for name in parents:
            if isinstance(where, list):
                where = where[int(name)] if int(name) < len(where) else {}
            else:
                where = where.setdefault(name, {})
        key: Any = int(last) if isinstance(where, list) else last
        if step["op"] == "remove":
            del where[key]
        elif step["op"] == "add":
            where[key] = step["value"]
        elif (where[key] if isinstance(where, list) else where.get(key)) != step["value"]:
            raise InvalidError(f"testing value {step['path']} failed", status=422)


def _set_conditions(obj: Obj, entries: list[Obj]) -> None:
    """Merge by type, as the API server does it."""
    known = {c["type"]: c for c in obj.setdefault("status", {}).get("conditions", [])}
    obj["status"]["conditions"] = [*(known | {e["type"]: e for e in entries}).values()]


def _set_names(obj: Obj, entries: list[Obj]) -> None:
    """Merge entries by their names, as a strategic merge patch does."""
    if entries:
        status = obj.setdefault("status", {})
        known = {each["name"]: each for each in status.get("resourceClaimStatuses", [])}
        known |= {each["name"]: each for each in entries}
        status["resourceClaimStatuses"] = [*known.values()]
