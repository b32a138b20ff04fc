"""Readers of the page by bearer token: the API server says whose a token is, and the rights.

By TokenReview and SubjectAccessReview: nothing is decided here. Answers are forgotten after
seconds, so that a right that is taken away soon ends here as well.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from cli.page.mirrors import BusyError, Reader
from dra.common.cache import BoundedCache
from dra.common.resources import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS, Resource, picked
from dra.kube.client import KubeApi

KEPT_SECONDS = 10.0
_MOST_READERS, _MOST_RIGHTS = 256, 64
_MOST_REVIEWS, _PATIENCE_SECONDS = 4, 5.0
"""Reviews at a time, and seconds that one waits for its turn: strangers may send tokens, too."""
_LONGEST_TOKEN = 16 * 2**10

_Review = Callable[[Resource, Mapping[str, Any]], Mapping[str, Any]]


def reviewed_readers(
    api: KubeApi, now: Callable[[], float] = time.monotonic
) -> Callable[[str], Reader | None]:
    """A thread-safe function that finds the reader with a token, or None.

    It asks the API server at most once in ``KEPT_SECONDS``, and raises BusyError where too many
    reviews are under way, KubeError where the server did not review the token.
    """
    known: BoundedCache[bytes, tuple[float, Reader | None]] = BoundedCache(_MOST_READERS)
    lock, turns = threading.Lock(), threading.BoundedSemaphore(_MOST_REVIEWS)

    def review(resource: Resource, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        if not turns.acquire(timeout=_PATIENCE_SECONDS):
            raise BusyError
        try:
            return api.review(resource, spec)
        finally:
            turns.release()

    def find(token: str) -> Reader | None:
        if not token.isascii() or len(token) > _LONGEST_TOKEN:
            return None
        key = hashlib.sha256(token.encode()).digest()
        with lock:
            until, reader = known.find(key) or (0.0, None)
        if now() < until:
            return reader
        user = review(TOKEN_REVIEWS, {"token": token})
        reader = _reader(user["user"], review) if user.get("authenticated") is True else None
        with lock:
            known.put(key, (now() + KEPT_SECONDS, reader))
        return reader

    return find


def _reader(user: Mapping[str, Any], review: _Review) -> Reader:
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
            known[key] = review(SUBJECT_ACCESS_REVIEWS, body).get("allowed") is True
        return known[key]

    return Reader(may_list)
