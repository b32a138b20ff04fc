"""Watches: the changes of one resource as a client's selection sees them."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from dra.common.resources import Obj
from sim.apiserver.refusals import errors
from sim.apiserver.storage.store import CompactedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from sim.apiserver.schema.resources import Family
    from sim.apiserver.storage.selectors import Selection
    from sim.apiserver.storage.store import Change, Record, Store

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
