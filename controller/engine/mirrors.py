"""Mirrors of one leadership: what the controller reads of the API server, put into its inbox.

They start with leadership and list anew, so that a new leader knows every write of the one before
it.
"""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from controller.cluster.changes import MIRRORED, OPTIONAL, POD_GROUPS, apply
from controller.cluster.cluster import Cluster
from controller.cluster.trimming.trimming import Trimmer, remembering
from controller.engine.inbox import Inbox
from dra.claims.classes import generated_label
from dra.common.resources import RESOURCE_CLAIM_TEMPLATES, RESOURCE_SLICES, Resource
from dra.kube.client import KubeApi, first_served
from dra.kube.reflector import Change, Reflector
from dra.kube.timing import Clock

_log = logging.getLogger(__name__)

_PATIENCE_SECONDS = 10.0


class Mirrors:
    """Running mirrors, none before and after ``running``."""

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
                keep=Trimmer(resource, self._driver),
                remember=remembering(resource),
            )
            for resource in (*MIRRORED, *OPTIONAL, *filter(None, groups))
        ]
        try:
            for mirror in made:
                mirror.start()
            self._running = made
            yield
        finally:
            self._running = []
            for mirror in made:
                mirror.stop()

    @property
    def ended(self) -> str:
        """Mirrors that have ended by themselves, in words; empty when all is well."""
        return ", ".join(f"{m.resource} has ended" for m in self._running if m.has_ended)

    @property
    def missing(self) -> str:
        """Resources that are not listed yet, in words; empty when all is well."""
        missing = ", ".join(map(str, self._lacking()))
        return f"not listed yet: {missing}" if missing else ""

    def fill(self, cluster: Cluster, inbox: Inbox, stop: threading.Event, clock: Clock) -> bool:
        """Take what is listed into ``cluster``; True once that is all, False when stopped before.

        It is taken at once, so that it need not be held whole. Complains about what is missing.
        """
        complain_at = clock.monotonic() + _PATIENCE_SECONDS
        while not stop.is_set():
            missing = self._lacking()
            if changes := inbox.take(0.01):
                apply(cluster, changes)
                # As in the loop: what is mirrored is not looked at again with each page that comes.
                gc.freeze()
            if not missing:
                self._tell_denied()
                return True
            if clock.monotonic() >= complain_at:
                complain_at += _PATIENCE_SECONDS
                _log.warning(
                    "nothing is allocated before these can be listed; "
                    "is the CRD installed and does RBAC allow list and watch?",
                    extra={"missing": ", ".join(map(str, missing))},
                )
        return False

    def _lacking(self) -> list[Resource]:
        """Resources before whose list nothing is allocated."""
        return [
            m.resource
            for m in self._running
            if not m.synced and not (m.resource not in MIRRORED and m.denied)
        ]

    def _tell_denied(self) -> None:
        denied = ", ".join(str(m.resource) for m in self._running if not m.synced)
        if denied:
            _log.warning(
                "where pods fit, and which belong together, is not known in full: let the "
                "controller list and watch these, as the chart does",
                extra={"missing": denied},
            )


def _selector(resource: Resource, driver: str) -> str:
    """Labels of the objects that are mirrored; of templates those that the controller made."""
    return f"{generated_label(driver)}=true" if resource == RESOURCE_CLAIM_TEMPLATES else ""


def _fields(resource: Resource, driver: str) -> str:
    """Fields of the objects that are mirrored; of slices those of other drivers."""
    return f"spec.driver!={driver}" if resource == RESOURCE_SLICES else ""


def _deliver(inbox: Inbox, resource: Resource) -> Callable[[Change], None]:
    return lambda change: inbox.put(resource, change)
