"""Telemetry of the plugin: metrics, probes, and the claims known for logs."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry

from dra.gpu.inventory import Gpu
from dra.gpu.names import DeviceNameError, MigDevice, parse_device
from dra.monitoring import WHOLE_GPU
from dra.monitoring.probes import Probes
from kubeletplugin.journal.journal import Journal
from kubeletplugin.telemetry.claim_cache import ClaimCache
from kubeletplugin.telemetry.liveness import Liveness
from kubeletplugin.telemetry.metrics import UNKNOWN, PluginMetrics
from kubeletplugin.telemetry.nodemetrics import NodeMetrics
from kubeletplugin.telemetry.readiness import Readiness


class Telemetry:
    """Telemetry of one process from its start: it may wait long before it has a Daemon."""

    def __init__(
        self, registry: CollectorRegistry | None = None, probes: Probes | None = None
    ) -> None:
        self.registry = registry or CollectorRegistry()
        self.probes = probes or Probes()
        self.claims = ClaimCache()
        self.metrics = PluginMetrics(self.registry, self.claims)
        self.liveness = Liveness(self.probes)

    def watch(
        self, gpus: Callable[[], tuple[Gpu, ...]], journal: Journal, readiness: Readiness
    ) -> None:
        """Show what there is on the node, too."""
        self.metrics.profile_of = lambda device: _profile(device, gpus())
        self.registry.register(NodeMetrics(gpus, journal, readiness, self.claims))


def _profile(device: str, gpus: tuple[Gpu, ...]) -> str:
    try:
        parsed = parse_device(device)
    except DeviceNameError:
        return UNKNOWN
    if not isinstance(parsed, MigDevice):
        return WHOLE_GPU
    geometry = next((g.geometry for g in gpus if g.name == parsed.gpu), None)
    profile = geometry.by_id(parsed.profile_id) if geometry else None
    return profile.name if profile else UNKNOWN
