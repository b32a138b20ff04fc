"""Lists in pages, and watches as clients read them."""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict, deque
from typing import TYPE_CHECKING

import msgspec

from dra.common.resources import Obj
from sim.apiserver import errors
from sim.apiserver.store import CompactedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sim.apiserver.registry import Registry
    from sim.apiserver.requests import Request, Target
    from sim.apiserver.store import Change, Record
    from sim.apiserver.tables import Form


_BOOKMARK_SECONDS = 60.0
_BEFORE_END_SECONDS = 2.0
_SHORTEST_DEFAULT_SECONDS = 1800
_SNAPSHOTS_KEPT = 64
_encode = msgspec.json.Encoder().encode


Snapshots = OrderedDict[str, tuple[int, list["Record"]]]
"""Lists whose later pages somebody may ask for, as the first page saw them, by their tokens."""


def answer(
    registry: Registry, snapshots: Snapshots, target: Target, request: Request, form: Form
) -> bytes:
    """The body of a list, or of a page of one.

    Raises:
        ApiError: the parameters are refused.
    """
    resource, now = target.resource, registry.env.now()
    limit, token = request.number("limit"), request.query.get("continue", "")
    if token:
        version, records, start = _resume(registry, snapshots, token, target)
    else:
        version, records, start = *_begin(registry, target, request), 0
    end = start + limit if limit else len(records)
    metadata: Obj = {"resourceVersion": str(version)}
    if end < len(records):
        name = token.rpartition(".")[0] or f"{version}-{random.getrandbits(64):x}"
        snapshots[name] = (version, records)
        while len(snapshots) > _SNAPSHOTS_KEPT:
            snapshots.popitem(last=False)
        metadata["continue"] = f"{name}.{end}"
        metadata["remainingItemCount"] = len(records) - end
    records = records[start:end]
    if form.is_table:
        rows = form.table(resource, [record.obj for record in records], now)
        return _encode(rows | {"metadata": metadata})
    head = {"kind": f"{resource.kind}List", "apiVersion": resource.api_version}
    # The objects' own bytes, as they were stored: nothing is encoded again.
    items = [form.encode(resource, record, now) for record in records]
    whole = _encode(head | {"metadata": metadata})
    return whole[:-1] + b',"items":[' + b",".join(items) + b"]}"


def _begin(registry: Registry, target: Target, request: Request) -> tuple[int, list[Record]]:
    store, kind = registry.store, registry.kind(target.resource)
    if (asked := request.number("resourceVersion")) > store.version:
        raise errors.too_large_version(asked, store.version)
    selection = registry.selection(target, request)
    records = store.records(target.resource.family, target.namespace, names=selection.names)
    return store.version, [r for r in records if selection.takes(r.obj, kind.select)]


def _resume(
    registry: Registry, snapshots: Snapshots, token: str, target: Target
) -> tuple[int, list[Record], int]:
    name, _, start = token.rpartition(".")
    if not start.isdigit():
        raise errors.bad_request("continue key is not valid")
    version, records = snapshots.get(name, (-1, []))
    if version < registry.store.compacted(target.resource.family):
        raise errors.expired("The provided continue parameter is too old")
    return version, records, int(start)


class Watch:
    """One client's watch: a queue that the store fills and the client's connection empties.

    From its making on no change is missed.
    """

    def __init__(self, registry: Registry, target: Target, request: Request, form: Form) -> None:
        """Begins with what is there already, or what changed since the asked-for version.

        Raises:
            ApiError: the parameters are refused.
        """
        if request.flag("sendInitialEvents"):
            text = "sendInitialEvents is forbidden for watch: this server does not have it"
            raise errors.ApiError(422, "Invalid", text)
        self._store = registry.store
        self._registry = registry
        self._target = target
        self._form = form
        self._selection = registry.selection(target, request)
        self._fields_of = registry.kind(target.resource).select
        self._bookmarks = request.flag("allowWatchBookmarks")
        self._seconds = request.number("timeoutSeconds") or random.randint(
            _SHORTEST_DEFAULT_SECONDS, 2 * _SHORTEST_DEFAULT_SECONDS
        )
        self._events: deque[tuple[str, Record]] = deque()
        self._filled = asyncio.Event()
        self._expired: errors.ApiError | None = None
        self._start(request.number("resourceVersion"))
        # In the same step of the event loop as the look back: nothing can come in between.
        self._stop = self._store.listen(self._see)

    def close(self) -> None:
        """Queues nothing any more."""
        self._stop()

    def _start(self, version: int) -> None:
        family, current = self._target.resource.family, self._store.version
        if version > current:
            raise errors.too_large_version(version, current)
        if version == 0:
            records = self._store.records(family, self._target.namespace)
            self._events += [("ADDED", record) for record in records if self._takes(record)]
            return
        try:
            for change in self._store.since(family, version):
                self._see(change)
        except CompactedError:
            self._expired = errors.expired(f"too old resource version: {version} ({current})")

    def _takes(self, record: Record) -> bool:
        namespace = self._target.namespace
        if namespace and record.obj["metadata"].get("namespace") != namespace:
            return False
        return self._selection.takes(record.obj, self._fields_of)

    def _see(self, change: Change) -> None:
        """Queues a change; an object that enters or leaves the selection is added or deleted."""
        if change.family != self._target.resource.family:
            return
        was = change.old is not None and self._takes(change.old)
        is_now = change.type != "DELETED" and self._takes(change.new)
        if is_now:
            self._events.append(("MODIFIED" if was else "ADDED", change.new))
        elif was:
            gone = change.new if change.type == "DELETED" else _left(change)
            self._events.append(("DELETED", gone))
        self._filled.set()

    async def lines(self) -> AsyncIterator[bytes]:
        """The lines of the answer, until its time is over."""
        if self._expired is not None:
            yield _encode({"type": "ERROR", "object": self._expired.status()}) + b"\n"
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        end = now + self._seconds
        mark_at = min(now + _BOOKMARK_SECONDS, max(end - _BEFORE_END_SECONDS, now + 0.1))
        while (now := loop.time()) < end:
            self._filled.clear()
            while self._events:
                yield self._line(*self._events.popleft())
            if self._bookmarks and now >= mark_at:
                mark_at = now + _BOOKMARK_SECONDS
                yield self._bookmark()
                continue
            until = min(end, mark_at) if self._bookmarks else end
            try:
                await asyncio.wait_for(self._filled.wait(), max(0.0, until - now))
            except TimeoutError:
                continue

    def _line(self, event: str, record: Record) -> bytes:
        body = self._form.encode(self._target.resource, record, self._registry.env.now())
        return b'{"type":"%b","object":%b}\n' % (event.encode(), body)

    def _bookmark(self) -> bytes:
        resource = self._target.resource
        bookmark: Obj = {"kind": resource.kind, "apiVersion": resource.api_version}
        if self._form.is_table:
            bookmark = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "rows": []}
        bookmark["metadata"] = {"resourceVersion": str(self._store.version)}
        return _encode({"type": "BOOKMARK", "object": bookmark}) + b"\n"


def _left(change: Change) -> Record:
    """The old state under the new version, which is what a leaver's watcher sees."""
    old = change.old or change.new
    obj = old.copy()
    obj["metadata"]["resourceVersion"] = str(change.new.version)
    return type(old)(obj, change.new.version, b"")
