"""Cache of parsed pod and claim specs: equal specs are parsed once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from dra.claims.claims import Request, read_requests
from dra.common.cache import BoundedCache, json_weight
from dra.pods.pods import READ_FIELDS, PodNeeds, read_needs

_BYTES = 16 * 2**20


class Sharing:
    """Readers whose results are shared between equal specs. Not thread-safe."""

    def __init__(self) -> None:
        self._needs: BoundedCache[bytes, PodNeeds] = BoundedCache(_BYTES, weigh=json_weight)
        self._requests: BoundedCache[bytes, tuple[Request, ...]] = BoundedCache(
            _BYTES, weigh=json_weight
        )

    def needs(self, spec: Mapping[str, Any]) -> PodNeeds:
        """``read_needs``."""
        key = msgspec.json.encode([spec.get(field) for field in READ_FIELDS])
        return self._needs.get(key, lambda: read_needs(spec))

    def requests(self, raw: Iterable[Mapping[str, Any]]) -> tuple[Request, ...]:
        """``read_requests``."""
        return self._requests.get(msgspec.json.encode(raw), lambda: read_requests(raw))
