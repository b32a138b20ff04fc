"""Registry of a daemon's metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics


def daemon_registry() -> CollectorRegistry:
    """A registry that has the figures of this process; one for each daemon.

    In this process no counter or histogram has a ``_created`` series beside it: nobody reads them,
    and the library knows that setting for all registries only.
    """
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return registry
