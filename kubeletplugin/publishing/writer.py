"""Writers to the API server: when they write, and what they know to be there already."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping

from dra.common.resources import Obj, Resource
from dra.kube.client import KubeApi
from dra.kube.errors import KubeError
from dra.kube.http import Keep, whole
from dra.kube.loop import Loop
from dra.kube.reflector import Change, Reflector
from dra.kube.timing import Backoff, Clock

_log = logging.getLogger(__name__)
_VERSIONS_KEPT = 64


class Writer(ABC):
    """Calls ``_write`` in ``thread`` with each key that is wanted; several wishes count as one.

    A key whose write fails is written again after a pause that grows, and keeps no other waiting.
    ``what``: name for logs. ``reflector``: watch of the objects, started and stopped with the
    writer. Thread-safe.
    """

    def __init__(self, what: str, *, reflector: Reflector | None = None, clock: Clock) -> None:
        self._what = what
        self._reflector = reflector
        self._clock = clock
        self._lock = threading.Condition()
        self._due: dict[str, float] = {}
        self._wanted: set[str] = set()
        self._pauses: dict[str, Backoff] = {}
        self._is_busy = False
        self.thread = Loop(what, self._turn, backoff=Backoff(limit=1.0), clock=clock)

    def start(self) -> None:
        """Write, and go on writing."""
        self.want()
        if self._reflector is not None:
            self._reflector.start()
        self.thread.start()

    def stop(self) -> None:
        """Stop after the write that is under way; what is published stays as it is."""
        if self._reflector is not None:
            self._reflector.stop()
        self.thread.stop()
        self.thread.join()

    def want(self, key: str = "", *, after: float = 0.0, anew: bool = False) -> None:
        """Have ``key`` written in ``after`` seconds, or when the pause after a failure is over.

        ``anew``: something else is wanted than what failed, so that there is no pause. The thread
        is not woken: ``notify`` does that.
        """
        due = self._clock.monotonic() + after
        with self._lock:
            self._wanted.add(key)
            if anew:
                self._pauses.pop(key, None)
                self._due[key] = due
            elif key not in self._pauses or key not in self._due:
                self._due[key] = min(due, self._due.get(key, due))

    def notify(self) -> None:
        """Compare what is there with what should be, soon."""
        self.want()
        self.thread.notify()

    def wait_idle(self, timeout: float) -> bool:
        """Wait until nothing that is wanted is left to write; False after ``timeout`` seconds."""
        with self._lock:
            return self._lock.wait_for(lambda: not self._wanted and not self._is_busy, timeout)

    @abstractmethod
    def _write(self, key: str) -> float | None:
        """Write what differs; returns seconds until the next call without a wish, or None."""

    def _turn(self) -> float | None:
        with self._lock:
            if not self._due:
                return None
            key = min(self._due, key=self._due.__getitem__)
            wait = self._due[key] - self._clock.monotonic()
            if wait > 0:
                return wait
            del self._due[key]
            self._wanted.discard(key)
            self._is_busy = True
        failed, again = True, None
        try:
            again = self._write(key)
            failed = False
        except KubeError as error:
            again = error.retry_after
            _log.warning("%s %s: not written yet: %s", self._what, key, error)
        finally:
            self._after(key, again, failed=failed)
        return 0.0

    def _after(self, key: str, again: float | None, *, failed: bool) -> None:
        now = self._clock.monotonic()
        with self._lock:
            if failed:
                pause = self._pauses.setdefault(key, Backoff())
                self._due[key] = now + pause.next_delay(at_least=again)
                self._wanted.add(key)
            else:
                self._pauses.pop(key, None)
                if again is not None:
                    self._due[key] = min(now + again, self._due.get(key, now + again))
            self._is_busy = False
            self._lock.notify_all()


class Known:
    """Objects of this node, as the watch shows them or a later answer to an own request.

    ``on_change``: called in the thread of the watch with each change that it shows, and whether
    that is another's.
    """

    def __init__(
        self,
        api: KubeApi,
        resource: Resource,
        *,
        field_selector: str,
        on_change: Callable[[Change, bool], None],
        keep: Keep = whole,
    ) -> None:
        self._on_change = on_change
        self._answers: dict[str, Obj | None] = {}
        self._versions: deque[str] = deque(maxlen=_VERSIONS_KEPT)
        self.reflector = Reflector(
            api,
            resource,
            field_selector=field_selector,
            on_event=self._changed,
            keep=keep,
        )

    def take(self, answer: Obj) -> Obj:
        """Take an object as the API server has just answered it; returns it."""
        self._versions.append(version_of(answer))
        self._answers[answer["metadata"]["name"]] = answer
        return answer

    def drop(self, name: str) -> None:
        """Take note that this program has deleted an object."""
        self._answers[name] = None

    def objects(self) -> Mapping[str, Obj]:
        """The objects by name."""
        found = {obj["metadata"]["name"]: obj for obj in self.reflector.store.list()}
        for name, answer in [*self._answers.items()]:
            if name not in found or version_of(found[name]) in self._versions:
                found.pop(name, None)
                if answer is not None:
                    found[name] = answer
        return found

    def versions(self) -> Mapping[str, str]:
        """The resourceVersions of the objects by name."""
        return {name: version_of(obj) for name, obj in self.objects().items()}

    def _changed(self, change: Change) -> None:
        name = (change.new or change.old or {})["metadata"]["name"]
        if change.new is None or change.rewound:
            is_own = self._answers.pop(name, change.old) is None and not change.rewound
        else:
            is_own = version_of(change.new) in self._versions
        self._on_change(change, not is_own)


def version_of(obj: Obj) -> str:
    """The resourceVersion of an object."""
    return str(obj["metadata"].get("resourceVersion", ""))
