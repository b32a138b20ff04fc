"""Limits on events about one object, and the events that were sent already."""

import hashlib
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from dra.common.resources import Obj

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")

_MESSAGE_BYTES = 1024
_NAME_CHARS = 253
_DIGEST_CHARS = 16


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One thing that happened to one object; equal ones are counted instead of repeated."""

    regarding: tuple[tuple[str, str], ...]
    reason: str
    message: str
    warning: bool

    @classmethod
    def of(cls, regarding: Obj, reason: str, message: str, *, warning: bool) -> "Occurrence":
        """Take what identifies the object from its metadata.

        Raises:
            KeyError: the object lacks apiVersion, kind or name.
        """
        meta = regarding["metadata"]
        reference = {
            "apiVersion": regarding["apiVersion"],
            "kind": regarding["kind"],
            "name": meta["name"],
            "namespace": meta.get("namespace") or "",
            "uid": meta.get("uid") or "",
        }
        return cls(
            tuple((key, str(value)) for key, value in reference.items() if value),
            reason,
            cut(message),
            warning,
        )

    @property
    def involved(self) -> dict[str, str]:
        """The event's ``involvedObject``."""
        return dict(self.regarding)

    @property
    def namespace(self) -> str:
        """Namespace of the event: that of its object; ``default`` for cluster-scoped objects."""
        return self.involved.get("namespace") or "default"

    def event_name(self, first: datetime, source: str) -> str:
        """``<object>.<hash>``, unique per occurrence, first time and source."""
        digest = hashlib.sha256(repr((self, first.timestamp(), source)).encode()).hexdigest()
        room = _NAME_CHARS - _DIGEST_CHARS - 1
        return f"{self.involved['name'][:room].rstrip('.-')}.{digest[:_DIGEST_CHARS]}"


def cut(message: str) -> str:
    """At most 1024 bytes, which is what the API server takes for a message."""
    encoded = message.encode()
    if len(encoded) <= _MESSAGE_BYTES:
        return message
    return encoded[: _MESSAGE_BYTES - 3].decode(errors="ignore") + "…"


class Recent(Generic[_Key, _Value]):
    """A mapping that forgets what was used least recently beyond its size. Not thread-safe."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: OrderedDict[_Key, _Value] = OrderedDict()

    def get(self, key: _Key) -> _Value | None:
        """The value, now the most recent; or None."""
        if key in self._entries:
            self._entries.move_to_end(key)
        return self._entries.get(key)

    def put(self, key: _Key, value: _Value) -> None:
        """Remember a value as the most recent."""
        self._entries[key] = value
        self._entries.move_to_end(key)
        if len(self._entries) > self._size:
            self._entries.popitem(last=False)

    def forget(self, key: _Key) -> None:
        """Drop a value, if there is one."""
        self._entries.pop(key, None)


@dataclass(slots=True)
class _Bucket:
    tokens: float
    filled_at: float


class Allowance:
    """A token bucket per object: ``burst`` at once, then one every ``refill_seconds``.

    Not thread-safe. The last 4096 objects are remembered.
    """

    def __init__(self, *, burst: int, refill_seconds: float) -> None:
        self._burst = burst
        self._refill_seconds = refill_seconds
        self._buckets: Recent[Hashable, _Bucket] = Recent(4096)

    def take(self, key: Hashable, now: float) -> bool:
        """Spend one token of the object; False when it has none. ``now`` is monotonic seconds."""
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = _Bucket(float(self._burst), now)
            self._buckets.put(key, bucket)
        gained = (now - bucket.filled_at) / self._refill_seconds
        bucket.tokens = min(float(self._burst), bucket.tokens + gained)
        bucket.filled_at = now
        if bucket.tokens < 1:
            return False
        bucket.tokens -= 1
        return True
