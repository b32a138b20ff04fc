"""Requests to the API server as metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

from dra.kube.client.http import Exchange
from dra.monitoring import PREFIX

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_NAMESPACED = 2


class ApiRequests:
    """Counts requests that HttpClient reports, by verb, kind of object and status."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._count = Counter(
            f"{PREFIX}api_requests_total",
            "Requests to the API server; code is the HTTP status, or none without an answer.",
            ["method", "resource", "code"],
            registry=registry,
        )
        self._seconds = Histogram(
            f"{PREFIX}api_request_duration_seconds",
            "Time to the answer of the API server; of a watch, to its beginning.",
            ["method"],
            registry=registry,
            buckets=_SECONDS,
        )
        self._found: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def __call__(self, exchange: Exchange) -> None:
        """One request has ended."""
        method, resource = exchange.method, resource_of(exchange.path)
        found = self._found.get((method, resource, exchange.status))
        if found is None:
            code = str(exchange.status) if exchange.status else "none"
            found = self._count.labels(method, resource, code), self._seconds.labels(method)
            self._found[method, resource, exchange.status] = found
        count, seconds = found
        count.inc()
        seconds.observe(exchange.seconds)


def resource_of(path: str) -> str:
    """``resourceclaims/status`` from a path of Resource.path."""
    parts = path.strip("/").split("/")
    rest = parts[3:] if parts[0] == "apis" else parts[2:]
    if rest[:1] == ["namespaces"] and len(rest) > _NAMESPACED:
        rest = rest[_NAMESPACED:]
    kind, subresource = rest[:1], rest[2:3]
    return "/".join([*kind, *subresource]) or "other"
