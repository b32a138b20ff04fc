"""The verbs on objects: create, update, patch, apply, bind, evict. Deletion is in `deletion`.

Every write goes the same way: change a private copy, normalise, default, confine to what the
endpoint may write, validate, record ownership, and store, unless nothing has changed.
"""

from __future__ import annotations

import copy
import random
import uuid
from typing import TYPE_CHECKING, Any

from dra.common.resources import Obj
from sim.apiserver import errors, fields, ownership
from sim.apiserver.custom import CustomKind
from sim.apiserver.dra import DRA_KINDS
from sim.apiserver.fields import check_metadata, check_metadata_update
from sim.apiserver.kinds import CORE_KINDS, Kind
from sim.apiserver.requests import Target, WriteOptions, check_identity, decode
from sim.apiserver.store import Record, Selection, parse_fields, parse_labels

if TYPE_CHECKING:
    from collections.abc import Callable

    from sim.apiserver.kinds import Environment
    from sim.apiserver.requests import Target
    from sim.apiserver.resources import ResourceType


_PLAIN = Kind()
_KINDS: dict[tuple[str, str], Kind] = {**CORE_KINDS, **DRA_KINDS}
_NAME_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_LONGEST_GENERATED_PREFIX = 58


class Registry:
    """Objects with their rules, over a store."""

    def __init__(self, env: Environment) -> None:
        self.env = env
        self.store = env.store

    def kind(self, resource: ResourceType) -> Kind:
        """The life cycle of a resource."""
        if resource.custom:
            return CustomKind(resource)
        return _KINDS.get(resource.family, _PLAIN)

    def selection(self, resource: ResourceType, labels: str, fields: str) -> Selection:
        """Parses selectors for this resource (400 if they do not fit)."""
        supported = {"metadata.name", *self.kind(resource).selectable}
        if resource.namespaced or not resource.custom:
            supported.add("metadata.namespace")
        return Selection(parse_labels(labels), parse_fields(fields, frozenset(supported)))

    def get(self, target: Target) -> Record:
        """The current record (404 if there is none)."""
        record = self.store.get(target.resource.family, target.key)
        if record is None:
            raise errors.not_found(target.resource, target.name)
        return record

    def create(
        self, target: Target, body: Obj, options: WriteOptions, warnings: list[str]
    ) -> Record:
        """Creates an object from a request body."""
        obj = decode(target, body, options, warnings)
        metadata = obj["metadata"]
        self._place(target, metadata)
        metadata.pop("managedFields", None)
        return self._insert(target, obj, options, applied=None)

    def _place(self, target: Target, metadata: Obj) -> None:
        resource = target.resource
        if metadata.get("resourceVersion"):
            # The real server means this as its own fault, too.
            text = "resourceVersion should not be set on objects to be created"
            raise errors.ApiError(500, "", text)
        if resource.namespaced:
            if metadata.setdefault("namespace", target.namespace) != target.namespace:
                raise errors.bad_request(
                    "the namespace of the provided object does not match the namespace sent on "
                    "the request"
                )
        else:
            metadata.pop("namespace", None)
        prefix = metadata.get("generateName", "")
        if not metadata.get("name") and prefix:
            suffix = "".join(random.choices(_NAME_ALPHABET, k=5))
            metadata["name"] = prefix[:_LONGEST_GENERATED_PREFIX] + suffix

    def _insert(
        self, target: Target, obj: Obj, options: WriteOptions, *, applied: Obj | None
    ) -> Record:
        resource, metadata, env = target.resource, obj["metadata"], self.env
        kind, has_status = self.kind(resource), "status" in resource.subresources
        name = metadata.get("name", "")
        metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": env.timestamp()}
        for written_by_server in (
            "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink",
        ):  # fmt: skip
            metadata.pop(written_by_server, None)
        kind.default(obj, env)
        given = copy.deepcopy(obj)
        kind.begin(obj, env, has_status=has_status)
        if resource.namespaced:
            self._require_namespace(resource, metadata["namespace"], name)
        found = [*check_metadata(resource, metadata), *kind.check_create(obj, env)]
        if found:
            raise errors.invalid(resource, name, found)
        if self.store.get(resource.family, (metadata.get("namespace", ""), name)):
            raise errors.already_exists(resource, name)
        if applied is None:
            write = self._write(target, "Update", options)
            ownership.track_update(resource.shape, {"metadata": {}}, given, write)
            if "managedFields" in given["metadata"]:
                metadata["managedFields"] = given["metadata"]["managedFields"]
        if options.dry_run:
            return _unsaved(obj)
        return self.store.put(resource.family, obj)

    def _require_namespace(self, resource: ResourceType, namespace: str, name: str) -> None:
        record = self.store.get(("", "namespaces"), ("", namespace))
        if record is None:
            error = errors.ApiError(404, "NotFound", f'namespaces "{namespace}" not found')
            error.details = {"name": namespace, "kind": "namespaces"}
            raise error
        if record.obj["metadata"].get("deletionTimestamp"):
            refused = errors.forbidden(
                resource,
                name,
                f"unable to create new content in namespace {namespace} because it is being "
                "terminated",
            )
            refused.details["causes"] = [
                {
                    "reason": "NamespaceTerminating",
                    "message": f"namespace {namespace} is being terminated",
                    "field": "metadata.namespace",
                }
            ]
            raise refused

    def update(
        self,
        target: Target,
        transform: Callable[[Obj], Obj],
        options: WriteOptions,
        warnings: list[str],
    ) -> Record:
        """Changes an object: `transform` gets a private copy of the live one, gives the new one."""
        live = self.get(target)
        old = live.obj
        shown = target.resource.present(live.copy())
        new = decode(target, transform(shown), options, warnings)
        check_identity(target, new["metadata"], old)
        write = self._write(target, "Update", options)
        return self._replace(target, live, new, options, track=write)

    def apply(
        self,
        target: Target,
        config: Obj,
        options: WriteOptions,
        warnings: list[str],
        *,
        force: bool,
    ) -> tuple[Record, bool]:
        """Applies a configuration; gives the record and whether it was created."""
        config = decode(target, config, options, warnings)
        metadata = config["metadata"]
        if "managedFields" in metadata:
            raise errors.bad_request("metadata.managedFields must be nil")
        if metadata.setdefault("name", target.name) != target.name:
            raise errors.bad_request("name in URL does not match name in the applied object")
        if target.resource.namespaced:
            metadata.setdefault("namespace", target.namespace)
        write = self._write(target, "Apply", options)
        live = self.store.get(target.resource.family, target.key)
        if live is None:
            if target.subresource or metadata.get("uid"):
                raise errors.not_found(target.resource, target.name)
            shape = target.resource.shape
            created = ownership.apply(shape, {"metadata": {}}, config, write, force=force)
            self._place(target, created["metadata"])
            return self._insert(target, created, options, applied=config), True
        check_identity(target, dict(metadata), live.obj)
        new = ownership.apply(target.resource.shape, live.copy(), config, write, force=force)
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
        kind, has_status = self.kind(resource), "status" in resource.subresources
        _keep_server_fields(new["metadata"], old["metadata"])
        kind.default(new, env)
        # What is stored may be shared with watchers: rules get a copy to take values from.
        before = live.copy()
        if target.subresource == "status":
            kind.report(new, before, env)
            found = list(kind.check_status(new, old, env))
        else:
            kind.advance(new, before, env, has_status=has_status)
            found = list(kind.check_update(new, old, env))
        found += check_metadata(resource, new["metadata"])
        found += check_metadata_update(new["metadata"], old["metadata"])
        if found:
            raise errors.invalid(resource, target.name, found)
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
        resource = target.resource
        reset = self.kind(resource).reset_fields(
            target.subresource, has_status="status" in resource.subresources
        )
        manager = ownership.Manager(
            operation, options.manager, resource.api_version, target.subresource
        )
        return ownership.Write(manager, self.env.timestamp(), reset)

    def creates_by_update(self, target: Target) -> bool:
        """True if a PUT to this object has to create it."""
        kind = self.kind(target.resource)
        absent = self.store.get(target.resource.family, target.key) is None
        return absent and kind.created_by_update and not target.subresource

    def require_version(self, target: Target, body: Any) -> None:
        """Refuses (422) a PUT without resourceVersion where the kind insists on one."""
        metadata = (body.get("metadata") or {}) if isinstance(body, dict) else {}
        if metadata.get("resourceVersion") or self.kind(target.resource).unconditional_update:
            return
        if self.store.get(target.resource.family, target.key) is None:
            return
        cause = fields.invalid("metadata.resourceVersion", 0, "must be specified for an update")
        raise errors.invalid(target.resource, target.name, [cause])


def _keep_server_fields(metadata: Obj, old: Obj) -> None:
    for name in ("uid", "creationTimestamp", "managedFields"):
        if name in old:
            metadata.setdefault(name, old[name])
    for name in ("deletionTimestamp", "deletionGracePeriodSeconds", "generation"):
        if name in old:
            metadata[name] = old[name]
        else:
            metadata.pop(name, None)


def _same_but_for_times(new: Obj, old: Obj) -> bool:
    def timeless(obj: Obj) -> Obj:
        metadata = obj["metadata"]
        entries = [
            {name: value for name, value in entry.items() if name != "time"}
            for entry in metadata.get("managedFields", [])
        ]
        kept = {k: v for k, v in metadata.items() if k != "resourceVersion"}
        return obj | {"metadata": kept | {"managedFields": entries}}

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
