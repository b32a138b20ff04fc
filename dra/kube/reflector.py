"""Reflector: lists once, then watches for ever, and so keeps a local copy of a resource.

The watch and informer of the kubernetes package fail on ResourceClaims and retry without pause,
hence this one.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, TypedDict, Unpack

from dra.common.resources import Obj, Resource, at
from dra.kube.client import KubeApi
from dra.kube.errors import ForbiddenError, GoneError, KubeError, ObjectNotFoundError
from dra.kube.http import WatchEvent, WatchStream
from dra.kube.loop import Loop
from dra.kube.timing import Backoff, Clock, SystemClock


class Selection(TypedDict, total=False):
    """Selection of the objects of a resource to mirror; without any of these fields all are."""

    namespace: str
    label_selector: str
    field_selector: str


@dataclass(frozen=True, slots=True)
class Change:
    """Change of one object.

    ``added`` has only ``new``, ``deleted`` only ``old`` (the last known state), ``modified`` both.
    ``rewound``: the server went back to an older state, so that ``new`` is true although its
    resourceVersion is lower than one that was seen.
    """

    kind: Literal["added", "modified", "deleted"]
    old: Obj | None
    new: Obj | None
    rewound: bool = False


class Store:
    """Objects by namespace and name. Thread-safe. The objects are shared: never mutate them.

    Only the reflector writes; a write returns the changes that it made, with objects as they were
    given. The store itself holds ``remember(object)``, which must keep name, namespace and UID. An
    object counts as changed only if ``remember(object)`` has changed.
    """

    def __init__(self, remember: Callable[[Obj], Obj] = lambda obj: obj) -> None:
        self._remember = remember
        self._lock = threading.Lock()
        self._objects: dict[tuple[str, str], Obj] = {}

    def get(self, name: str, namespace: str = "") -> Obj | None:
        """The object, or None."""
        with self._lock:
            return self._objects.get((namespace, name))

    def __len__(self) -> int:
        with self._lock:
            return len(self._objects)

    def put(self, obj: Obj) -> list[Change]:
        """Take one object's new state."""
        with self._lock:
            return self._put(obj)

    def remove(self, obj: Obj) -> list[Change]:
        """Forget an object, given in its last state."""
        with self._lock:
            known = self._objects.pop(_key(obj), None)
        return [] if known is None else [Change("deleted", obj, None)]

    def replace(self, objects: Iterable[Obj], *, rewound: bool = False) -> list[Change]:
        """Take a complete list; objects that are not in it are deleted.

        With ``rewound`` every object of the list is reported, even if it seems unchanged. An object
        whose resourceVersion is lower than before is reported as rewound in any case: a restore of
        etcd may raise the version of the list, which ends watches, and still lower those of
        objects.
        """
        objects = [*objects]
        listed = {_key(obj) for obj in objects}
        with self._lock:
            gone = [key for key in self._objects if key not in listed]
            changes = [Change("deleted", self._objects.pop(key), None) for key in gone]
            for obj in objects:
                before = self._objects.get(_key(obj))
                found = self._put(obj)
                is_back = before is not None and (rewound or _is_older(obj, before))
                if is_back and not any(c.kind == "added" for c in found):
                    found = [Change("modified", before, obj, rewound=True)]
                changes += found
        return changes

    def _put(self, obj: Obj) -> list[Change]:
        key = _key(obj)
        old, new = self._objects.get(key), self._remember(obj)
        if old == new:
            return []
        self._objects[key] = new
        if old is None:
            return [Change("added", None, obj)]
        if _meta(old, "uid") != _meta(obj, "uid"):
            # Deleted and created again under the same name while nobody watched.
            return [Change("deleted", old, None), Change("added", None, obj)]
        return [Change("modified", old, obj)]

    # Last, because below it `list` means this method.
    def list(self) -> list[Obj]:
        """All objects, in no particular order; the list is the caller's own."""
        with self._lock:
            return [*self._objects.values()]


def _is_older(obj: Obj, known: Obj) -> bool:
    return _goes_back(_meta(obj, "resourceVersion"), _meta(known, "resourceVersion"))


def _meta(obj: Obj, field: str) -> str:
    return str(obj["metadata"].get(field) or "")


def _key(obj: Obj) -> tuple[str, str]:
    return _meta(obj, "namespace"), obj["metadata"]["name"]


_log = logging.getLogger(__name__)

_SHORT_WATCH_SECONDS = 1.0

WATCH_SECONDS = 300.0
"""Time after which a watch is renewed, or up to twice that."""

DOUBTFUL_SECONDS = 30.0
"""Time of a watch after a failure, or after the server went back: it may stay silent for ever.

A server that was restored from a snapshot sends nothing to a watch from a version that it has yet
to reach, not even bookmarks (cache_watcher.go of the API server, 1.36).
"""


class Reflector:
    """One thread that mirrors a resource into :attr:`store` and reports every change.

    ``on_event`` is called in that thread, after the store has the change and in the order of the
    changes; its exceptions are logged and do not stop the mirror. It must not block for long. After
    a list that follows a gap the differences are reported as if they had been watched.

    A watch is renewed after ``WATCH_SECONDS`` (plus up to as much again, so that many programs do
    not come back at once), sooner after a failure. After a watch without any event the version of
    the collection is asked for: if it went back, as after a restore of etcd, everything is read
    anew. Failures are retried for ever, with growing pauses. ``keep`` reduces an object to the part
    that is reported; ``metadata`` must stay. The store holds ``remember`` of that part.

    ``on_listed`` is called after each list, once its changes were reported; an empty list may have
    no changes.
    """

    def __init__(  # noqa: PLR0913 - what to mirror, and who hears of it
        self,
        api: KubeApi,
        resource: Resource,
        *,
        on_event: Callable[[Change], None] | None = None,
        on_listed: Callable[[], None] = lambda: None,
        keep: Callable[[Obj], Obj] = lambda obj: obj,
        remember: Callable[[Obj], Obj] = lambda obj: obj,
        clock: Clock | None = None,
        **selection: Unpack[Selection],
    ) -> None:
        self.store = Store(remember)
        self._api = api
        self.resource = resource
        self._selection = selection
        self._on_event = on_event
        self._on_listed = on_listed
        self._keep = keep
        self._backoff = Backoff()
        self._clock = clock or SystemClock()
        self._version = ""  # where the next watch starts; "" means list first
        self._latest = ""  # the last version that was seen of the collection
        self._doubtful = False
        self._synced = threading.Event()
        self._denied = False
        self._stream_lock = threading.Lock()
        self._stream: WatchStream | None = None
        self._loop = Loop(f"reflector {resource}", self._turn, clock=self._clock)

    @property
    def synced(self) -> bool:
        """True once the first complete list is in the store and was reported."""
        return self._synced.is_set()

    @property
    def has_ended(self) -> bool:
        """True if its thread has ended without a call of :meth:`stop`, which must never happen."""
        return self._loop.has_ended

    @property
    def denied(self) -> bool:
        """True if the last request was refused: no rights, or no such resource."""
        return self._denied

    @property
    def failures(self) -> int:
        """Failures in a row; a single one is usual."""
        return self._backoff.failures

    def wait_synced(self, timeout: float | None) -> bool:
        """Wait for :attr:`synced`, at most ``timeout`` seconds; returns it."""
        return self._synced.wait(timeout)

    def start(self) -> None:
        """Start mirroring. A reflector runs once."""
        self._loop.start()

    def stop(self) -> None:
        """End the running watch and the thread; the store keeps its last state. Idempotent."""
        self._loop.stop()
        with self._stream_lock:
            if self._stream is not None:
                self._stream.close()
        self._loop.join()

    def _turn(self) -> float:
        """List if that is needed, and follow one watch; returns 0: the next turn comes at once."""
        try:
            if not self._version:
                self._list()
            if not self._loop.is_stopping():
                self._watch()
        except KubeError as error:
            self._recover(error)
        except Exception:
            self._version = ""  # the last change may be taken in part only
            raise
        return 0.0

    def _list(self) -> None:
        listed = self._api.list(self.resource, **self._selection, keep=self._keep)
        if self._loop.is_stopping():
            return
        rewound = _goes_back(listed.resource_version, self._latest)
        if rewound:
            _log.warning(
                "%s: the server went back from version %s to %s, as after a restore of etcd: "
                "everything is read anew",
                self.resource,
                self._latest,
                listed.resource_version,
            )
        self._report(self.store.replace(listed.items, rewound=rewound))
        self._version = self._latest = listed.resource_version
        if not self._synced.is_set():
            self._synced.set()
            _log.info("%s: mirroring %d objects", self.resource, len(listed.items))
        self._on_listed()

    def _watch(self) -> None:
        """Follow one watch to its end."""
        started = self._clock.monotonic()
        seconds = WATCH_SECONDS * (1 + random.random())  # noqa: S311 - jitter, not a secret
        stream = self._api.watch(
            self.resource,
            **self._selection,
            resource_version=self._version,
            timeout_seconds=min(seconds, DOUBTFUL_SECONDS) if self._doubtful else seconds,
        )
        with self._stream_lock:
            self._stream = stream
        try:
            if self._loop.is_stopping():
                return
            progressed = False
            for event in stream:
                self._take(event)
                self._progress()
                progressed = True
                self._doubtful = False
        finally:
            with self._stream_lock:
                self._stream = None
            stream.close()
        if self._loop.is_stopping():
            return
        if not progressed and self._clock.monotonic() - started < _SHORT_WATCH_SECONDS:
            raise KubeError("the server ended the watch at once")
        if not progressed:
            self._check_version()
        self._progress()

    def _check_version(self) -> None:
        """List anew if the version of the collection went back."""
        version = self._api.version(self.resource, **self._selection)
        self._doubtful = _goes_back(version, self._latest)
        if self._doubtful:
            self._version = ""

    def _take(self, event: WatchEvent) -> None:
        if event.type == "DELETED":
            self._report(self.store.remove(self._keep(event.object)))
        elif event.type != "BOOKMARK":
            self._report(self.store.put(self._keep(event.object)))
        self._version = self._latest = str(event.object["metadata"]["resourceVersion"])

    def _report(self, changes: Iterable[Change]) -> None:
        if self._on_event is None:
            return
        for change in changes:
            try:
                self._on_event(change)
            except Exception:  # noqa: BLE001 - the consumer's own, whatever it is
                obj = change.new or change.old or {}
                _log.exception(
                    "%s: handling %r of %s failed",
                    self.resource,
                    change.kind,
                    at(obj, "metadata", "name", default=None),
                )

    def _progress(self) -> None:
        if self._backoff.failures > 1:
            _log.info("%s: recovered after %d failures", self.resource, self._backoff.failures)
        self._backoff.reset()

    def _recover(self, error: KubeError) -> None:
        """Decide where to continue, say why, and wait."""
        self._denied = isinstance(error, ForbiddenError | ObjectNotFoundError)
        self._doubtful = True
        if self._loop.is_stopping():
            return
        if isinstance(error, GoneError) or error.too_large_resource_version:
            self._version = ""
        delay = self._backoff.next_delay(at_least=error.retry_after)
        failures = self._backoff.failures
        # Loud at the 2nd, 4th, 8th ... failure in a row: one broken watch is usual.
        loud = failures > 1 and failures & (failures - 1) == 0
        _log.log(
            logging.WARNING if loud else logging.DEBUG if failures > 1 else logging.INFO,
            "%s: %s; %s in %.1f s (failure %d in a row)",
            self.resource,
            error,
            "watching again" if self._version else "listing again",
            delay,
            failures,
        )
        self._loop.pause(delay)


def _goes_back(version: str, known: str) -> bool:
    """True if the version of a list is lower than one that was seen before.

    A list asks for no version and is answered with the latest, so that no server that merely lags
    behind gives a lower one.
    """
    return version.isdigit() and known.isdigit() and int(version) < int(known)
