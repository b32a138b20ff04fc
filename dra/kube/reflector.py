"""Reflector: lists once, then watches for ever, and so keeps a local copy of a resource.

The watch and informer of the kubernetes package fail on ResourceClaims and retry without pause,
hence this one.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, Unpack

from dra.common.resources import Obj, ObjectKey, Resource, at
from dra.kube.client import KubeApi, Selection
from dra.kube.errors import ForbiddenError, GoneError, KubeError, ObjectNotFoundError
from dra.kube.http import Keep, WatchEvent, WatchStream, whole
from dra.kube.loop import Loop
from dra.kube.timing import Backoff, Clock, SystemClock


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
        self._objects: dict[ObjectKey, Obj] = {}
        self._unlisted: set[ObjectKey] = set()
        self._expected: set[ObjectKey] = set()

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
            self._expected.discard(_key(obj))
            known = self._objects.pop(_key(obj), None)
        return [] if known is None else [Change("deleted", obj, None)]

    def discard(self, name: str, namespace: str = "") -> list[Change]:
        """Forget an object of which nothing is kept any more, if it is known."""
        with self._lock:
            known = self._objects.pop((namespace, name), None)
        return [] if known is None else [Change("deleted", known, None)]

    def leave_out(self, obj: Obj) -> None:
        """Keep nothing more of an object, unless its state is another by now."""
        with self._lock:
            known = self._objects.get(_key(obj))
            if known is not None and _meta(known, "resourceVersion") == _meta(
                obj, "resourceVersion"
            ):
                del self._objects[_key(obj)]

    def expect(self, name: str, namespace: str = "") -> None:
        """Note that an object which was left out is read: ``put_expected`` follows."""
        with self._lock:
            self._expected.add((namespace, name))

    def put_expected(self, obj: Obj) -> list[Change] | None:
        """Take an object that was read; None if that may be too old, and is to be done again."""
        with self._lock:
            key = _key(obj)
            if key in self._objects:
                return []
            if key not in self._expected:
                return None
            self._expected.discard(key)
            return self._put(obj)

    def begin_list(self) -> None:
        """Take a complete list from now on, by ``put_listed``; it ends with ``end_list``."""
        with self._lock:
            self._unlisted = {*self._objects}
            self._expected.clear()

    def put_listed(self, objects: Iterable[Obj], *, rewound: bool = False) -> list[Change]:
        """Take a part of a list.

        With ``rewound`` every object of the list is reported, even if it seems unchanged. An object
        whose resourceVersion is lower than before is reported as rewound in any case: a restore of
        etcd may raise the version of the list, which ends watches, and still lower those of
        objects.
        """
        changes: list[Change] = []
        with self._lock:
            for obj in objects:
                key = _key(obj)
                self._unlisted.discard(key)
                before = self._objects.get(key)
                found = self._put(obj)
                is_back = before is not None and (rewound or _is_older(obj, before))
                if is_back and not any(c.kind == "added" for c in found):
                    found = [Change("modified", before, obj, rewound=True)]
                changes += found
        return changes

    def end_list(self) -> list[Change]:
        """Forget the objects that are not in the list."""
        with self._lock:
            gone, self._unlisted = self._unlisted, set()
            known = [self._objects.pop(key) for key in gone if key in self._objects]
        return [Change("deleted", obj, None) for obj in known]

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


def _key(obj: Obj) -> ObjectKey:
    return _meta(obj, "namespace"), obj["metadata"]["name"]


_log = logging.getLogger(__name__)

_SHORT_WATCH_SECONDS = 1.0

WATCH_SECONDS = 300.0
"""Time after which a watch is renewed, or up to twice that."""

RECALL_AGAIN = 5.0
"""Seconds until an object that could not be read is asked for again."""

DOUBTFUL_SECONDS = 30.0
"""Time of a watch after a failure, or after the server went back: it may stay silent for ever.

A server that was restored from a snapshot sends nothing to a watch from a version that it has yet
to reach, not even bookmarks (cache_watcher.go of the API server, 1.36).
"""


class Reflector:
    """One thread that mirrors a resource into :attr:`store` and reports every change.

    ``on_event`` is called in that thread, after the store has the change and in the order of the
    changes; its exceptions are logged and do not stop the mirror. It must not block for long. The
    differences that a list shows after a gap are reported as if they had been watched, part by
    part, those of objects that are gone last.

    A watch is renewed after ``WATCH_SECONDS`` (plus up to as much again, so that many programs do
    not come back at once), sooner after a failure. After a watch without any event the version of
    the collection is asked for: if it went back, as after a restore of etcd, everything is read
    anew. Failures are retried for ever, with growing pauses. ``keep`` decodes the part of an object
    that is reported; ``metadata`` must stay. An object of which it keeps nothing counts as missing.
    The store holds ``remember`` of that part.

    Its user may leave objects out of :attr:`store`, and :meth:`recall` them. ``pace`` is called
    after each part of a list was reported, and may wait.

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
        pace: Callable[[], None] = lambda: None,
        keep: Keep = whole,
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
        self._pace = pace
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
        self._reporting = threading.RLock()  # a change is reported before the next is made
        self._wanted: deque[ObjectKey] = deque()
        self._recalls = Loop(f"recalls of {resource}", self._recall, clock=self._clock)

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

    def recall(self, name: str, namespace: str = "") -> None:
        """Have an object that was left out read, and reported if it is there. One thread calls."""
        self._wanted.append((namespace, name))
        if not self._recalls.is_started:
            self._recalls.start()
        self._recalls.notify()

    def stop(self) -> None:
        """End the running watch and the thread; the store keeps its last state. Idempotent."""
        self._loop.stop()
        self._recalls.stop()
        with self._stream_lock:
            if self._stream is not None:
                self._stream.close()
        self._loop.join()
        self._recalls.join()

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
        version, rewound = "", False
        for part in self._api.parts(self.resource, **self._selection, keep=self._keep):
            if self._loop.is_stopping():
                return
            version = part.resource_version
            if part.is_first:
                rewound = self._is_rewound(version)
                self.store.begin_list()
            with self._reporting:
                self._report(self.store.put_listed(part.items, rewound=rewound))
            self._pace()
        with self._reporting:
            self._report(self.store.end_list())
        self._version = self._latest = version
        if not self._synced.is_set():
            self._synced.set()
            _log.info("%s: mirroring %d objects", self.resource, len(self.store))
        self._on_listed()

    def _is_rewound(self, version: str) -> bool:
        """True, and logged, if a list goes back behind what was seen."""
        rewound = _goes_back(version, self._latest)
        if rewound:
            _log.warning(
                "%s: the server went back from version %s to %s, as after a restore of etcd: "
                "everything is read anew",
                self.resource,
                self._latest,
                version,
            )
        return rewound

    def _watch(self) -> None:
        """Follow one watch to its end."""
        started = self._clock.monotonic()
        seconds = WATCH_SECONDS * (1 + random.random())  # noqa: S311 - jitter, not a secret
        stream = self._api.watch(
            self.resource,
            **self._selection,
            resource_version=self._version,
            keep=self._keep,
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
        with self._reporting:
            if event.type != "BOOKMARK":
                self._report(self._changes(event))
        self._version = self._latest = event.version

    def _changes(self, event: WatchEvent) -> list[Change]:
        if event.object is None:
            return self.store.discard(event.name, event.namespace)
        if event.type == "DELETED":
            return self.store.remove(event.object)
        return self.store.put(event.object)

    def _recall(self) -> float | None:
        """Read the first of the wanted objects; returns when the next is read."""
        if not self._wanted:
            return None
        namespace, name = self._wanted[0]
        self.store.expect(name, namespace)
        try:
            obj = self._api.get_kept(self.resource, name, self._keep, namespace=namespace)
        except ObjectNotFoundError:
            obj = None
        except KubeError as error:
            _log.warning("%s %s/%s is read again later: %s", self.resource, namespace, name, error)
            return RECALL_AGAIN
        with self._reporting:
            changes = self.store.put_expected(obj) if obj is not None else []
            self._report(changes or ())
        if changes is not None:
            self._wanted.popleft()
        return 0.0

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
