"""Lists in pages, and watches as clients read them."""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from dra.common.resources import Obj
from sim.apiserver import deletion, errors
from sim.apiserver.bodies import Form
from sim.apiserver.requests import Target
from sim.apiserver.store import CompactedError
from sim.apiserver.tables import metadata_only, table

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from sim.apiserver.deletion import DeleteOptions
    from sim.apiserver.registry import Registry
    from sim.apiserver.requests import Request
    from sim.apiserver.resources import Family
    from sim.apiserver.store import Change, Record, Selection, Store


_BOOKMARK_SECONDS = 60.0
_BEFORE_END_SECONDS = 2.0
INITIAL_EVENTS_END = "k8s.io/initial-events-end"


class Watch:
    """One client's watch: a queue that the store fills and the client's connection empties."""

    def __init__(
        self,
        store: Store,
        family: Family,
        *,
        namespace: str,
        selection: Selection,
        fields_of: Callable[[Obj], Obj],
    ) -> None:
        self._store = store
        self._family = family
        self._namespace = namespace
        self._selection = selection
        self._fields_of = fields_of
        self._events: deque[tuple[str, Record]] = deque()
        self._filled = asyncio.Event()
        self._stop_listening: Callable[[], None] = lambda: None

    def start(self, version: int | None, *, initial_events: bool) -> None:
        """Queues what is there already, or what changed since `version`.

        Raises:
            CompactedError: the history no longer reaches back to `version`.
        """
        if version is not None and not initial_events:
            for change in self._store.since(self._family, version):
                self._see(change)
        else:
            for record in self._store.records(self._family, self._namespace):
                if self._takes(record):
                    self._events.append(("ADDED", record))
        # In the same step of the event loop as the look back: nothing can come in between.
        self._stop_listening = self._store.listen(self._see)

    def close(self) -> None:
        """Stops listening to the store."""
        self._stop_listening()

    def _takes(self, record: Record) -> bool:
        if self._namespace and record.obj["metadata"].get("namespace") != self._namespace:
            return False
        return self._selection.takes(record.obj, self._fields_of)

    def _see(self, change: Change) -> None:
        """Queues a change; an object that enters or leaves the selection is added or deleted."""
        if change.family != self._family:
            return
        was = change.old is not None and self._takes(change.old)
        is_now = change.type != "DELETED" and self._takes(change.new)
        if is_now:
            self._events.append(("MODIFIED" if was else "ADDED", change.new))
        elif was:
            gone = change.new if change.type == "DELETED" else self._left(change)
            self._events.append(("DELETED", gone))
        self._filled.set()

    @staticmethod
    def _left(change: Change) -> Record:
        """The old state under the new version, which is what a leaver's watcher sees."""
        old = change.old or change.new
        obj = old.copy()
        obj["metadata"]["resourceVersion"] = str(change.new.version)
        return type(old)(obj, change.new.version, b"")

    async def events(
        self, *, seconds: float, bookmarks: bool, mark_initial_end: bool
    ) -> AsyncIterator[tuple[str, Record | int]]:
        """Gives events until the timeout; a bookmark gives the version, not a record.

        The bookmark that ends the initial events is ("INITIAL", version).
        """
        loop = asyncio.get_running_loop()
        now = loop.time()
        end = now + seconds
        mark_at = min(now + _BOOKMARK_SECONDS, max(end - _BEFORE_END_SECONDS, now + 0.1))
        while self._events:
            yield self._events.popleft()
        if mark_initial_end:
            yield "INITIAL", self._store.version
        while (now := loop.time()) < end:
            self._filled.clear()
            while self._events:
                yield self._events.popleft()
            if bookmarks and now >= mark_at:
                mark_at = now + _BOOKMARK_SECONDS
                yield "BOOKMARK", self._store.version
                continue
            until = min(end, mark_at) if bookmarks else end
            try:
                await asyncio.wait_for(self._filled.wait(), max(0.0, until - now))
            except TimeoutError:
                continue


def begin(
    watch: Watch, store: Store, asked: str, *, initial_events: bool
) -> errors.ApiError | None:
    """Starts a watch from the asked-for resourceVersion.

    Gives the error that the stream has to begin and end with if that version is forgotten.

    Raises:
        ApiError: the version is none, or from the future.
    """
    if asked and not asked.isdigit():
        raise errors.bad_request(f'Invalid value: "{asked}": resourceVersion: strconv.ParseUint')
    version = int(asked) if asked and asked != "0" else None
    if version is not None and version > store.version:
        raise errors.too_large_version(version, store.version)
    try:
        watch.start(version, initial_events=initial_events)
    except CompactedError:
        return errors.expired(f"too old resource version: {asked} ({store.version})")
    return None


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


_SHORTEST_DEFAULT_SECONDS = 1800


@dataclass(frozen=True, slots=True)
class Stream:
    """The lines of a watch, and the call that ends it."""

    lines: AsyncIterator[bytes]
    close: Callable[[], None]


def open_watch(
    registry: Registry, target: Target, selection: Selection, request: Request, form: Form
) -> Stream:
    """Begins a watch; from this call on no change is missed.

    Raises:
        ApiError: the parameters are refused.
    """
    store, kind = registry.store, registry.kind(target.resource)
    initial = request.flag("sendInitialEvents")
    bookmarks = request.flag("allowWatchBookmarks")
    if initial and not (bookmarks and request.query.get("resourceVersionMatch") == "NotOlderThan"):
        raise errors.ApiError(
            422,
            "Invalid",
            'ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: '
            "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        )
    watch = Watch(
        store,
        target.resource.family,
        namespace=target.namespace,
        selection=selection,
        fields_of=kind.select,
    )
    asked = request.query.get("resourceVersion", "")
    expired = begin(watch, store, asked, initial_events=initial)
    seconds = request.number("timeoutSeconds") or random.randint(
        _SHORTEST_DEFAULT_SECONDS, 2 * _SHORTEST_DEFAULT_SECONDS
    )

    def line(event: str, what: Record | int) -> bytes:
        if not isinstance(what, int):
            body = form.encode(target.resource, what, registry.env.now())
            return b'{"type":"%b","object":%b}\n' % (event.encode(), body)
        metadata: Obj = {"resourceVersion": str(what), "creationTimestamp": None}
        if event == "INITIAL":
            metadata["annotations"] = {INITIAL_EVENTS_END: "true"}
        bookmark: Obj = {
            "kind": target.resource.kind,
            "apiVersion": target.resource.api_version,
            "metadata": metadata,
        }
        if form.kind == "Table":
            bookmark = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}
            bookmark |= {"columnDefinitions": None, "rows": []}
        return _encode({"type": "BOOKMARK", "object": bookmark}) + b"\n"

    async def lines() -> AsyncIterator[bytes]:
        if expired is not None:
            yield _encode({"type": "ERROR", "object": expired.status()}) + b"\n"
            return
        async for event, what in watch.events(
            seconds=seconds, bookmarks=bookmarks, mark_initial_end=initial
        ):
            yield line(event, what)

    return Stream(lines(), watch.close)
