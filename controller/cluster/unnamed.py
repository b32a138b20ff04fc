"""Claims that no pod names and that hold nothing: a tenant may make any number of them.

Of each namespace only so many are kept. What is beyond is left out of the mirror, and read again
once a pod names it.
"""

from __future__ import annotations

import logging

from dra.common.resources import Obj, ObjectKey
from dra.kube.reflector import Reflector

MOST_UNNAMED = 256
"""Claims of a namespace that are kept though no pod names them: 2.4 KiB each."""

_log = logging.getLogger(__name__)


class UnnamedClaims:
    """Claims that no pod names. ``mirror``: the mirror of claims, None where there is none."""

    def __init__(self, mirror: Reflector | None) -> None:
        self._mirror = mirror
        self._of: dict[str, set[str]] = {}
        self._crowded: set[str] = set()

    def admit(self, key: ObjectKey, obj: Obj) -> bool:
        """Take a claim that no pod names; returns False if it is to be left out."""
        namespace, name = key
        names = self._of.setdefault(namespace, set())
        if name in names or len(names) < MOST_UNNAMED:
            names.add(name)
            return True
        if namespace not in self._crowded:
            self._crowded.add(namespace)
            _log.info(
                "claims that no pod names are read again once one does",
                extra={"namespace": namespace, "kept": MOST_UNNAMED},
            )
        if self._mirror is not None:
            self._mirror.store.leave_out(obj)
        return False

    def discard(self, key: ObjectKey) -> None:
        """Take a claim that is gone, or that a pod names."""
        namespace, name = key
        if (names := self._of.get(namespace)) is not None:
            names.discard(name)
            if not names:
                del self._of[namespace]

    def remove_namespace(self, name: str) -> None:
        """Take a namespace that is gone, and with it what was left out."""
        self._crowded.discard(name)

    def find(self, key: ObjectKey) -> None:
        """Have a claim read that is not known, if it may have been left out."""
        if key[0] in self._crowded and self._mirror is not None:
            self._mirror.recall(key[1], key[0])
