"""Allowance of memory for what is large in the objects of a namespace, such as a pod's affinity.

Each object is bounded, and a tenant may make thousands. What is large is kept once where it is
equal, and counts for as long as anybody holds it: the mirror, the index or a decision.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from dra.common.cache import decoded_weight

NAMESPACE_BYTES = 16 * 2**20
"""Memory for what is large in the objects of a namespace, of one resource, roughly."""

ALL_BYTES = 32 * 2**20
"""Memory for what is large in all namespaces; where it is used up each has ``LEAST_BYTES``."""

LEAST_BYTES = 2**20


_SHORT = 200
"""Length of a text that is kept as it is."""


class CrowdedError(Exception):
    """The allowance of a namespace is used up."""


class _Dict(dict[str, Any]):
    __slots__ = ("__weakref__",)


class _List(list[Any]):
    __slots__ = ("__weakref__",)


class Allowance:
    """Counts by namespace. ``share`` is for one thread; what it gave may be released in any."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._held: dict[str, int] = {}
        self._total = 0
        self._known: weakref.WeakValueDictionary[bytes, Any] = weakref.WeakValueDictionary()

    def share(self, namespace: str, text: bytes, make: Callable[[], Any]) -> Any:
        """The dict or list whose JSON is ``text``: that which is held, or what ``make`` gives.

        Raises:
            CrowdedError: the objects of ``namespace`` hold too much already.
        """
        key = text if len(text) <= _SHORT else sha256(text).digest()
        known = self._known.get(key)
        if known is not None:
            return known
        weight = decoded_weight(text)
        self._take(namespace, weight)
        value = make()
        held: Any = _Dict(value) if isinstance(value, dict) else _List(value)
        weakref.finalize(held, self._give_back, namespace, weight).atexit = False
        self._known[key] = held
        return held

    def _take(self, namespace: str, weight: int) -> None:
        with self._lock:
            held = self._held.get(namespace, 0) + weight
            most = NAMESPACE_BYTES if self._total + weight <= ALL_BYTES else LEAST_BYTES
            if held > most:
                raise CrowdedError
            self._held[namespace] = held
            self._total += weight

    def _give_back(self, namespace: str, weight: int) -> None:
        with self._lock:
            self._total -= weight
            self._held[namespace] -= weight
            if not self._held[namespace]:
                del self._held[namespace]
