"""The writes of objects: create, update, patch, apply. Deletion is in `deletion`.

Every write goes the same way: change a private copy, normalise, default, confine to what the
endpoint may write, check, record ownership, and store, unless nothing has changed.
"""

from __future__ import annotations

import copy
import random
import uuid
from typing import TYPE_CHECKING, Any

from dra.common.resources import Obj
from sim.apiserver import errors, ownership
from sim.apiserver.custom import custom_kind
from sim.apiserver.kinds import KINDS, Kind
from sim.apiserver.requests import check_identity, decode
from sim.apiserver.store import Record, Selection, parse_selection

if TYPE_CHECKING:
    from collections.abc import Callable

    from sim.apiserver.kinds import Environment
    from sim.apiserver.requests import Request, Target, WriteOptions
    from sim.apiserver.resources import ResourceType


_PLAIN = Kind()
_NAME_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_LONGEST_GENERATED_PREFIX = 58
_SERVER_WRITTEN = ("deletionTimestamp", "deletionGracePeriodSeconds", "generation")


class Registry:
    """Objects with their rules, over a store."""

    def __init__(self, env: Environment) -> None:
        self.env = env
        self.store = env.store

    def kind(self, resource: ResourceType) -> Kind:
        """The life cycle of a resource."""
        return custom_kind(resource) if resource.custom else KINDS.get(resource.family, _PLAIN)

    def selection(self, target: Target, request: Request) -> Selection:
        """The selectors of a request (400 if they do not fit this resource)."""
        query = request.query
        fields = [query.get("fieldSelector", "")]
        if target.name:
            fields.append(f"metadata.name={target.name}")
        supported = self.kind(target.resource).select({"metadata": {}})
        return parse_selection(query.get("labelSelector", ""), ",".join(fields), supported)

    def get(self, target: Target) -> Record:
        """The current record (404 if there is none)."""
        record = self.store.get(target.resource.family, target.key)
        if record is None:
            raise errors.not_found(target.resource, target.name)
        return record

    def create(
        self, target: Target, body: Any, options: WriteOptions, warnings: list[str]
    ) -> Record:
        """Creates an object from a request body."""
        obj = decode(target, body, options, warnings)
        obj["metadata"].pop("managedFields", None)
        return self._insert(target, obj, options)

    def _insert(
        self, target: Target, obj: Obj, options: WriteOptions, *, applied: bool = False
    ) -> Record:
        resource, metadata, env = target.resource, obj["metadata"], self.env
        kind = self.kind(resource)
        self._name(target, metadata)
        name = metadata.get("name", "")
        metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": env.timestamp()}
        for field in _SERVER_WRITTEN:
            metadata.pop(field, None)
        kind.default(obj, env)
        given = copy.deepcopy(obj)
        kind.create(obj, env, has_status=resource.has_status)
        if resource.namespaced:
            self._require_namespace(resource, metadata["namespace"], name)
        if found := [*kind.check(obj, None)]:
            raise errors.refused(resource, name, found)
        if self.store.get(resource.family, (metadata.get("namespace", ""), name)):
            raise errors.already_exists(resource, name)
        if not applied:
            write = self._write(target, "Update", options)
            ownership.track_update(resource.shape, {"metadata": {}}, given, write)
            if "managedFields" in given["metadata"]:
                metadata["managedFields"] = given["metadata"]["managedFields"]
        return _unsaved(obj) if options.dry_run else self.store.put(resource.family, obj)

    def _name(self, target: Target, metadata: Obj) -> None:
        """Completes the name and namespace of a new object."""
        if metadata.get("resourceVersion"):
            # The real server means this as its own fault, too.
            text = "resourceVersion should not be set on objects to be created"
            raise errors.ApiError(500, "", text)
        if not target.resource.namespaced:
            metadata.pop("namespace", None)
        elif metadata.setdefault("namespace", target.namespace) != target.namespace:
            text = "the namespace of the provided object does not match the namespace sent on the "
            raise errors.bad_request(text + "request")
        prefix = metadata.get("generateName", "")
        if not metadata.get("name") and prefix:
            suffix = "".join(random.choices(_NAME_ALPHABET, k=5))
            metadata["name"] = prefix[:_LONGEST_GENERATED_PREFIX] + suffix
        if not metadata.get("name"):
            text = "Required value: name or generateName is required"
            cause = errors.Cause("FieldValueRequired", "metadata.name", text)
            raise errors.refused(target.resource, "", [cause])

    def _require_namespace(self, resource: ResourceType, namespace: str, name: str) -> None:
        record = self.store.get(("", "namespaces"), ("", namespace))
        if record is None:
            raise errors.ApiError(404, "NotFound", f'namespaces "{namespace}" not found')
        if record.obj["metadata"].get("deletionTimestamp"):
            raise errors.ApiError(
                403,
                "Forbidden",
                f'{resource.qualified} "{name}" is forbidden: unable to create new content in '
                f"namespace {namespace} because it is being terminated",
            )

    def update(
        self,
        target: Target,
        transform: Callable[[Obj], Any],
        options: WriteOptions,
        warnings: list[str],
    ) -> Record:
        """Changes an object: `transform` gets a private copy of the live one, gives the new one."""
        live = self.get(target)
        new = decode(target, transform(live.copy()), options, warnings)
        check_identity(target, new["metadata"], live.obj)
        return self._replace(
            target, live, new, options, track=self._write(target, "Update", options)
        )

    def apply(
        self,
        target: Target,
        config: Any,
        options: WriteOptions,
        warnings: list[str],
        *,
        force: bool,
    ) -> tuple[Record, bool]:
        """Applies a configuration; gives the record and whether it was created."""
        config = decode(target, config, options, warnings)
        if "managedFields" in config["metadata"]:
            raise errors.bad_request("metadata.managedFields must be nil")
        shape, write = target.resource.shape, self._write(target, "Apply", options)
        live = self.store.get(target.resource.family, target.key)
        if live is None:
            if target.subresource or config["metadata"].get("uid"):
                raise errors.not_found(target.resource, target.name)
            config["metadata"].setdefault("name", target.name)
            created = ownership.apply(shape, {"metadata": {}}, config, write, force=force)
            return self._insert(target, created, options, applied=True), True
        check_identity(target, config["metadata"], live.obj)
        new = ownership.apply(shape, live.copy(), config, write, force=force)
        new["metadata"] |= {
            name: live.obj["metadata"][name]
            for name in ("resourceVersion", "uid", "creationTimestamp")
        }
        return self._replace(target, live, new, options, track=None), False

    def _replace(
        self,
        target: Target,
        live: Record,
        new: Obj,
        options: WriteOptions,
        *,
        track: ownership.Write | None,
    ) -> Record:
        resource, env, old = target.resource, self.env, live.obj
        kind = self.kind(resource)
        _keep_server_fields(new["metadata"], old["metadata"])
        kind.default(new, env)
        # What is stored may be shared with watchers: rules get a copy to take values from.
        before = live.copy()
        if target.subresource == "status":
            kind.report(new, before)
            found = [*kind.check_status(new, old)]
        else:
            kind.advance(new, before, has_status=resource.has_status)
            found = [*kind.check(new, old)]
        if found := [*found, *_check_finalizers(new["metadata"], old["metadata"])]:
            raise errors.refused(resource, target.name, found)
        if track:
            ownership.track_update(resource.shape, old, new, track)
        if _same_but_for_times(new, old):
            return live
        if options.dry_run:
            return _unsaved(new)
        if _is_finished(new["metadata"], old["metadata"]):
            return self.store.remove(resource.family, new)
        return self.store.put(resource.family, new)

    def _write(self, target: Target, operation: str, options: WriteOptions) -> ownership.Write:
        resource, part = target.resource, target.subresource
        reset = self.kind(resource).reset_fields(part, has_status=resource.has_status)
        manager = ownership.Manager(operation, options.manager, resource.api_version, part)
        return ownership.Write(manager, self.env.timestamp(), reset)


def _check_finalizers(new: Obj, old: Obj) -> list[errors.Cause]:
    """New finalizers are refused during deletion."""
    added = sorted({*new.get("finalizers", [])} - {*old.get("finalizers", [])})
    if not new.get("deletionTimestamp") or not added:
        return []
    text = (
        "no new finalizers can be added if the object is being deleted, found new "
        "finalizers []string{" + ", ".join(f'"{name}"' for name in added) + "}"
    )
    return [errors.forbidden("metadata.finalizers", text)]


def _keep_server_fields(metadata: Obj, old: Obj) -> None:
    for name in ("uid", "creationTimestamp", "managedFields"):
        if name in old:
            metadata.setdefault(name, old[name])
    for name in _SERVER_WRITTEN:
        if name in old:
            metadata[name] = old[name]
        else:
            metadata.pop(name, None)


def _same_but_for_times(new: Obj, old: Obj) -> bool:
    def timeless(obj: Obj) -> Obj:
        metadata = obj["metadata"]
        entries = [entry | {"time": ""} for entry in metadata.get("managedFields", [])]
        return obj | {"metadata": metadata | {"resourceVersion": "", "managedFields": entries}}

    return timeless(new) == timeless(old)


def _is_finished(metadata: Obj, old: Obj) -> bool:
    """True if an update removed what still held a deleted object."""
    return (
        "deletionTimestamp" in old
        and not metadata.get("finalizers")
        and not old.get("deletionGracePeriodSeconds")
    )


def _unsaved(obj: Obj) -> Record:
    return Record(obj, 0, b"")
