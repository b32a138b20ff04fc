"""Requests to the API server as metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from dra.kube.client.http import Exchange
from dra.monitoring import PREFIX
from dra.monitoring.tallies import Series, Tallies

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_NAMESPACED = 2


class ApiRequests:
    """Counts requests that HttpClient reports, by verb, kind of object and status."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._tallies = Tallies(
            Series(
                f"{PREFIX}api_requests_total",
                "Requests to the API server; code is the HTTP status, or none without an answer.",
                ("method", "resource", "code"),
            ),
            Series(
                f"{PREFIX}api_request_duration_seconds",
                "Time to the answer of the API server; of a watch, to its beginning.",
                ("method",),
            ),
            bounds=_SECONDS,
        )
        registry.register(self._tallies)

    def __call__(self, exchange: Exchange) -> None:
        """One request has ended."""
        code = str(exchange.status) if exchange.status else "none"
        labels = exchange.method, resource_of(exchange.path), code
        self._tallies.take(labels, exchange.seconds)


def resource_of(path: str) -> str:
    """``resourceclaims/status`` from a path of Resource.path."""
    parts = path.strip("/").split("/")
    rest = parts[3:] if parts[0] == "apis" else parts[2:]
    if rest[:1] == ["namespaces"] and len(rest) > _NAMESPACED:
        rest = rest[_NAMESPACED:]
    kind, subresource = rest[:1], rest[2:3]
    return "/".join([*kind, *subresource]) or "other"
