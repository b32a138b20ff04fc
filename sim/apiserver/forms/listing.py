"""Lists: selection, pages, and the deletion of everything that a list would show."""

from __future__ import annotations

import base64
import json
from collections import OrderedDict
from typing import TYPE_CHECKING

import msgspec

from dra.common.resources import Obj
from sim.apiserver.forms.bodies import Form
from sim.apiserver.forms.tables import metadata_only, table
from sim.apiserver.refusals import errors
from sim.apiserver.verbs import deletion
from sim.apiserver.verbs.incoming import Target

if TYPE_CHECKING:
    from sim.apiserver.forms.requests import Request
    from sim.apiserver.storage.selectors import Selection
    from sim.apiserver.storage.store import Record
    from sim.apiserver.verbs.deletion import DeleteOptions
    from sim.apiserver.verbs.registry import Registry

_SNAPSHOTS_KEPT = 64
_encode = msgspec.json.Encoder().encode


class Lists:
    """Answers lists; later pages come from the state that the first page saw."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._snapshots: OrderedDict[str, tuple[int, list[Record]]] = OrderedDict()
        self._serial = 0

    def answer(self, target: Target, selection: Selection, request: Request, form: Form) -> bytes:
        """The body of a list."""
        limit = request.number("limit")
        token = request.query.get("continue", "")
        if token:
            version, records, start = self._resume(token, target)
        else:
            self._check_version(request)
            version, start = self._registry.store.version, 0
            records = self._select(target, selection)
        end = start + limit if limit else len(records)
        metadata: Obj = {"resourceVersion": str(version)}
        if end < len(records):
            metadata["continue"] = self._token(token, version, records, end)
            if not selection.labels and not selection.fields:
                metadata["remainingItemCount"] = len(records) - end
        return self._write(target, records[start:end], metadata, form)

    def _select(self, target: Target, selection: Selection) -> list[Record]:
        fields_of = self._registry.kind(target.resource).select
        records = self._registry.store.records(target.resource.family, target.namespace)
        return [record for record in records if selection.takes(record.obj, fields_of)]

    def _check_version(self, request: Request) -> None:
        asked = request.query.get("resourceVersion", "")
        match = request.query.get("resourceVersionMatch", "")
        if asked and not asked.isdigit():
            raise errors.bad_request(f'Invalid value: "{asked}": resourceVersion')
        current = self._registry.store.version
        if asked and int(asked) > current:
            raise errors.too_large_version(int(asked), current)
        if match == "Exact" and int(asked or 0) != current:
            raise errors.expired(f"The resourceVersion for the provided list is too old: {asked}")

    def _token(self, token: str, version: int, records: list[Record], end: int) -> str:
        name = json.loads(base64.urlsafe_b64decode(token))["list"] if token else ""
        if not name:
            self._serial += 1
            name = f"{version}-{self._serial}"
            self._snapshots[name] = (version, records)
            while len(self._snapshots) > _SNAPSHOTS_KEPT:
                self._snapshots.popitem(last=False)
        text = json.dumps({"v": "meta.k8s.io/v1", "list": name, "start": end})
        return base64.urlsafe_b64encode(text.encode()).decode()

    def _resume(self, token: str, target: Target) -> tuple[int, list[Record], int]:
        try:
            position = json.loads(base64.urlsafe_b64decode(token))
            name, start = str(position["list"]), int(position["start"])
        except (ValueError, KeyError, TypeError):
            raise errors.bad_request("continue key is not valid") from None
        version, records = self._snapshots.get(name, (-1, []))
        compacted = self._registry.store.compacted(target.resource.family)
        if version < compacted:
            raise errors.expired(
                "The provided continue parameter is too old to display a consistent list result. "
                "You can start a new list without the continue parameter, or use the continue "
                "token in this response to retrieve the remainder of the results."
            )
        return version, records, start

    def _write(self, target: Target, records: list[Record], metadata: Obj, form: Form) -> bytes:
        resource, now = target.resource, self._registry.env.now()
        if form.kind == "Table":
            objects = [record.obj for record in records]
            rows = table(resource, objects, now, include=form.include)
            return _encode(rows | {"metadata": metadata})
        if form.kind:
            metadatas = [metadata_only(record.obj) for record in records]
            head: Obj = {
                "kind": "PartialObjectMetadataList",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": metadata,
            }
            return _encode(head | {"items": metadatas})
        head = {
            "kind": f"{resource.kind}List",
            "apiVersion": resource.api_version,
            "metadata": metadata,
        }
        # The objects' own bytes, as they were stored: nothing is encoded again.
        items = [form.encode(resource, record, now) for record in records]
        return _encode(head)[:-1] + b',"items":[' + b",".join(items) + b"]}"

    def delete(self, target: Target, request: Request, options: DeleteOptions) -> bytes:
        """Deletes everything selected; gives the list of it."""
        labels = request.query.get("labelSelector", "")
        fields = request.query.get("fieldSelector", "")
        selection = self._registry.selection(target.resource, labels, fields)
        records = self._select(target, selection)
        for record in records:
            metadata = record.obj["metadata"]
            one = Target(target.resource, metadata.get("namespace", ""), metadata["name"])
            deletion.delete(self._registry, one, options)
        metadata = {"resourceVersion": str(self._registry.store.version)}
        return self._write(target, records, metadata, Form())
