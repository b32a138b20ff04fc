"""Mirrors of one leadership: changes of objects of the API server, put into an inbox.

The reflectors' threads put changes in, the thread that owns the cluster takes them. Mirrors start
with the leadership and list anew, so that a new leader knows every write of the one before it.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from controller import times
from controller.cluster.cluster import VOLUMES, Cluster
from controller.cluster.decoder import Decoder, remembering
from dra.claims.classes import generated_label
from dra.common.resources import (
    DEVICE_CLASSES,
    MIG_NODES,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Resource,
)
from dra.gangs.membership import KINDS
from dra.kube.client import KubeApi, first_served
from dra.kube.reflector import Change, Reflector
from dra.kube.timing import Clock

_log = logging.getLogger(__name__)

MIRRORED = (DEVICE_CLASSES, NODES, MIG_NODES, RESOURCE_CLAIMS, PODS)
"""Resources that are mirrored while leading."""

OPTIONAL = (*VOLUMES, NAMESPACES, RESOURCE_CLAIM_TEMPLATES, RESOURCE_SLICES)
"""Resources that are mirrored where that is allowed.

Of ResourceClaimTemplates only those that the controller made are mirrored, of ResourceSlices only
those of other drivers.
"""

POD_GROUPS = tuple(tuple(map(kind.at_version, kind.versions)) for kind in KINDS)
"""The versions of each kind of pod group; the first one that is served is mirrored."""

_FULL = 2_000
"""Changes in the inbox beyond which lists wait: each holds an object."""

_SHARE = 0.05
"""Share of the deciding thread's time that changes of one MigNode may take."""


class Inbox:
    """Changes in the order in which they came. Thread-safe.

    None in place of a change says that all objects of the resource were listed. Changes of a
    MigNode that took more than its share of time are held for a while, and only the latest of them
    is kept. This bounds the time that a node with a large or busy MigNode can take.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._changes: deque[tuple[Resource, Change | None]] = deque()
        self._held: dict[str, Change] = {}
        self._not_before: dict[str, float] = {}
        self._taken: dict[str, tuple[float, float]] = {}
        lock = threading.Lock()
        self._arrived, self._taken_from = threading.Condition(lock), threading.Condition(lock)
        self._woken = False

    def put(self, resource: Resource, change: Change | None) -> None:
        with self._arrived:
            name = mignode_of(resource, change)
            if change is not None and name in self._not_before:
                self._held[name] = change
            else:
                self._changes.append((resource, change))
            self._arrived.notify()

    def charge(self, name: str, seconds: float) -> None:
        """Note that a change of the MigNode ``name`` took so many ``seconds`` of processor time."""
        if seconds < times.MIGNODE_FREE:
            return
        now = self._now()
        with self._arrived:
            before, at = self._taken.get(name, (0.0, now))
            taken = max(0.0, before - _SHARE * (now - at)) + seconds
            self._taken[name] = taken, now
            if taken > times.MIGNODE_BURST:
                pause = min((taken - times.MIGNODE_BURST) / _SHARE, times.MIGNODE_PAUSE_LONGEST)
                self._not_before[name] = now + pause

    def wake(self) -> None:
        with self._arrived:
            self._woken = True
            self._arrived.notify()

    def take(self, timeout: float | None = 0.0) -> list[tuple[Resource, Change | None]]:
        """Take all changes; waits at most ``timeout`` seconds (None: for ever) for the first.

        May return early and without changes, after ``wake`` or if a held MigNode is due.
        """
        with self._arrived:
            self._release()
            if not self._changes and not self._woken and timeout != 0.0:
                self._arrived.wait(self._until_release(timeout))
                self._release()
            self._woken = False
            taken = [*self._changes]
            self._changes.clear()
            self._taken_from.notify_all()
        return taken

    def wait_for_room(self) -> None:
        """Wait, at most ``INBOX_FULL`` seconds, while so many changes are there that it is full."""
        with self._arrived:
            self._taken_from.wait_for(lambda: len(self._changes) < _FULL, times.INBOX_FULL)

    def _release(self) -> None:
        if not self._not_before:
            return
        now = self._now()
        for name in [name for name, at in self._not_before.items() if at <= now]:
            del self._not_before[name]
            if (change := self._held.pop(name, None)) is not None:
                self._changes.append((MIG_NODES, change))

    def _until_release(self, timeout: float | None) -> float | None:
        if not self._held:
            return timeout
        first = max(0.0, min(self._not_before[name] for name in self._held) - self._now())
        return first if timeout is None else min(first, timeout)


def mignode_of(resource: Resource, change: Change | None) -> str:
    """Name of the MigNode that a change is about; empty for other changes."""
    if resource != MIG_NODES or change is None:
        return ""
    obj = change.new or change.old or {}
    return str(obj.get("metadata", {}).get("name", ""))


class Mirrors:
    """The mirrors, which run within the context ``running`` only."""

    def __init__(self, api: KubeApi, driver: str) -> None:
        self._api = api
        self._driver = driver
        self._running: list[Reflector] = []

    @contextmanager
    def running(self, inbox: Inbox) -> Iterator[None]:
        """Mirror into ``inbox`` for as long as the context is entered."""
        groups = (first_served(self._api, of_kind) for of_kind in POD_GROUPS)
        made = [
            Reflector(
                self._api,
                resource,
                label_selector=_selector(resource, self._driver),
                field_selector=_fields(resource, self._driver),
                on_event=_deliver(inbox, resource),
                on_listed=partial(inbox.put, resource, None),
                pace=inbox.wait_for_room,
                keep=Decoder(resource, self._driver),
                remember=remembering(resource),
            )
            for resource in (*MIRRORED, *OPTIONAL, *filter(None, groups))
        ]
        try:
            for mirror in made:
                # Claims are listed once the pods are known that name them.
                if mirror.resource != RESOURCE_CLAIMS:
                    mirror.start()
            self._running = made
            yield
        finally:
            self._running = []
            for mirror in made:
                mirror.stop()

    @property
    def of_claims(self) -> Reflector:
        """The running mirror of claims."""
        (found,) = (m for m in self._running if m.resource == RESOURCE_CLAIMS)
        return found

    @property
    def ended(self) -> str:
        """Text that names the mirrors that have ended by themselves; empty if none has."""
        return ", ".join(f"{m.resource} has ended" for m in self._running if m.has_ended)

    @property
    def missing(self) -> str:
        """Text that names the resources that are not listed yet; empty if none is missing."""
        missing = ", ".join(map(str, self._lacking()))
        return f"not listed yet: {missing}" if missing else ""

    def fill(self, cluster: Cluster, inbox: Inbox, stop: threading.Event, clock: Clock) -> bool:
        """Take the lists of all mirrors into ``cluster``; warns of resources not listed for long.

        Returns True once all are listed, False if ``stop`` was set before. Objects are taken as
        they arrive, so that the lists need not be held in memory.
        """
        complain_at = clock.monotonic() + times.MIRRORS_MISSING_TOLD
        has_claims = False
        while not stop.is_set():
            if not has_claims and PODS not in self._lacking():
                self.of_claims.start()
                has_claims = True
            missing = self._lacking()
            if changes := inbox.take(0.01):
                for each in changes:
                    cluster.apply(*each)
                # The garbage collector need not look at the mirrored objects again with each page.
                gc.freeze()
            if not missing:
                self._tell_denied()
                return True
            if clock.monotonic() >= complain_at:
                complain_at += times.MIRRORS_MISSING_TOLD
                _log.warning(
                    "nothing is allocated before these can be listed; "
                    "is the CRD installed and does RBAC allow list and watch?",
                    extra={"missing": ", ".join(map(str, missing))},
                )
        return False

    def _lacking(self) -> list[Resource]:
        """Resources that have to be listed before anything is allocated, and are not yet."""
        found = [
            m.resource
            for m in self._running
            if not m.synced and not (m.resource not in MIRRORED and m.denied)
        ]
        # The list of claims has not begun before that of pods is there.
        return [each for each in found if each != RESOURCE_CLAIMS] if PODS in found else found

    def _tell_denied(self) -> None:
        denied = ", ".join(str(m.resource) for m in self._running if not m.synced)
        if denied:
            _log.warning(
                "where pods fit, and which belong together, is not known in full: let the "
                "controller list and watch these, as the chart does",
                extra={"missing": denied},
            )


def _selector(resource: Resource, driver: str) -> str:
    """Label selector of the mirrored objects; only templates that the controller made count."""
    return f"{generated_label(driver)}=true" if resource == RESOURCE_CLAIM_TEMPLATES else ""


def _fields(resource: Resource, driver: str) -> str:
    return f"spec.driver!={driver}" if resource == RESOURCE_SLICES else ""


def _deliver(inbox: Inbox, resource: Resource) -> Callable[[Change], None]:
    return lambda change: inbox.put(resource, change)
