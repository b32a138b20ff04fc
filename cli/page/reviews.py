"""Readers of the page by their bearer tokens: the API server says whose they are, and the rights.

TokenReview and SubjectAccessReview: nothing is decided here, and what was answered is forgotten in
seconds, so that a right that was taken away ends as soon.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from cli.page.mirrors import Reader
from cli.page.server import BusyError
from dra.common.resources import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS, Resource, at, picked
from dra.kube.client import KubeApi

KEPT_SECONDS = 10.0
_MOST_READERS, _MOST_RIGHTS = 256, 64
_MOST_REVIEWS, _PATIENCE_SECONDS = 4, 5.0
"""Reviews at a time, and how long one waits for its turn: strangers may send tokens, too."""
_LONGEST_TOKEN = 16 * 2**10


class ReviewedReaders:
    """Readers who have a token that the API server knows. Thread-safe."""

    def __init__(self, api: KubeApi, now: Callable[[], float] = time.monotonic) -> None:
        self._api, self._now = api, now
        self._lock = threading.Lock()
        self._known: dict[bytes, tuple[float, Reader | None]] = {}
        self._turns = threading.BoundedSemaphore(_MOST_REVIEWS)

    def find(self, token: str) -> Reader | None:
        """The reader, or None; asks the API server at most once in ``KEPT_SECONDS``.

        Raises:
            BusyError: too many reviews are under way.
            KubeError: the API server did not review it.
        """
        if not token.isascii() or len(token) > _LONGEST_TOKEN:
            return None
        key = hashlib.sha256(token.encode()).digest()
        with self._lock:
            until, reader = self._known.get(key, (0.0, None))
        if self._now() < until:
            return reader
        user = self._review(TOKEN_REVIEWS, {"token": token})
        reader = self._reader(user["user"]) if user.get("authenticated") is True else None
        with self._lock:
            self._known.pop(key, None)
            while len(self._known) >= _MOST_READERS:
                del self._known[next(iter(self._known))]  # the oldest
            self._known[key] = self._now() + KEPT_SECONDS, reader
        return reader

    def _reader(self, user: Mapping[str, Any]) -> Reader:
        subject = {"user": user["username"], **picked(user, ("uid", "groups", "extra"))}
        known: dict[tuple[Resource, str], bool] = {}

        def may_list(resource: Resource, namespace: str) -> bool:
            key = (resource, namespace)
            if key not in known:
                if len(known) >= _MOST_RIGHTS:
                    raise BusyError
                asked = {"verb": "list", "group": resource.group, "resource": resource.plural}
                attributes = {**asked, "version": resource.version, "namespace": namespace}
                body = {**subject, "resourceAttributes": attributes}
                known[key] = self._review(SUBJECT_ACCESS_REVIEWS, body).get("allowed") is True
            return known[key]

        return Reader(may_list)

    def _review(self, resource: Resource, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        kind = {"apiVersion": resource.api_version, "kind": resource.kind}
        if not self._turns.acquire(timeout=_PATIENCE_SECONDS):
            raise BusyError
        try:
            found = self._api.create(resource, {**kind, "metadata": {}, "spec": spec})
        finally:
            self._turns.release()
        status: Mapping[str, Any] = at(found, "status", default={})
        return status
