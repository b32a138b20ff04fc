"""Telemetry of one process, and metrics of the node's state.

The state is read when the metrics are collected: a slice that is gone has no series, and the number
of series is bounded by those of slices, GPUs and profiles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from pynvml import NVML_ERROR_IN_USE

from dra.gpu.inventory import Gpu, GpuReason
from dra.gpu.names import DeviceNameError, MigDevice, parse_device
from dra.monitoring import WHOLE_GPU
from dra.monitoring.metrics import family
from dra.monitoring.probes import Probes
from kubeletplugin.journal.entries import HELD, LEAVING, Entry, State
from kubeletplugin.journal.journal import Journal
from kubeletplugin.nvml.errors import code_name
from kubeletplugin.telemetry.observer import UNKNOWN, ClaimCache, NodeObserver
from kubeletplugin.telemetry.probes import Liveness, Readiness


class Telemetry:
    """Telemetry of one process from its start, also while it waits for another plugin to end."""

    def __init__(
        self, registry: CollectorRegistry | None = None, probes: Probes | None = None
    ) -> None:
        self.registry = registry or CollectorRegistry()
        self.probes = probes or Probes()
        self.claims = ClaimCache()
        self.metrics = NodeObserver(self.registry, self.claims)
        self.liveness = Liveness(self.probes)

    def watch(
        self, gpus: Callable[[], tuple[Gpu, ...]], journal: Journal, readiness: Readiness
    ) -> None:
        """Add the metrics of the node's state; ``gpus`` returns the GPUs as last seen."""
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


class NodeMetrics(Collector):
    """Metrics of the node's state; ``gpus`` returns the node's GPUs as last seen."""

    def __init__(
        self,
        gpus: Callable[[], tuple[Gpu, ...]],
        journal: Journal,
        readiness: Readiness,
        claims: ClaimCache,
    ) -> None:
        self._gpus = gpus
        self._journal = journal
        self._readiness = readiness
        self._claims = claims

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Collect all series, as they are now."""
        gpus, entries = self._gpus(), self._journal.entries()
        yield family(
            "ready",
            "1 while claims can be served, 0 otherwise.",
            [],
            [((), float(self._readiness.is_ready))],
        )
        yield from _of_gpus(gpus)
        names = {g.uuid: g.name for g in gpus}
        kept = (e for e in entries if e.state in LEAVING and e.placement is not None and not e.idle)
        # Each claim that shared a slice has an entry; the placement is counted once.
        places = {(names.get(e.gpu, e.gpu), e.placement, _why_unavailable(e)) for e in kept}
        yield family(
            "unavailable_placements",
            "Places that nothing new gets, as what was there is not removed yet.",
            ["gpu", "reason"],
            list(Counter((gpu, reason) for gpu, _, reason in places).items()),
        )
        yield family(
            "claim_info",
            "1 for every device that a claim has here; gi and ci are NVML's instance ids.",
            ["namespace", "pod", "claim", "gpu_uuid", "mig_uuid", "gi", "ci", "profile"],
            [(self._labels(e), 1.0) for e in entries if e.state in HELD],
        )

    def _labels(self, entry: Entry) -> tuple[str, ...]:
        pods = self._claims.of(entry.claim.uid).pods
        return (
            entry.claim.namespace,
            # One label per pod would make several series of one slice, which no query could join.
            pods[0] if len(pods) == 1 else "",
            entry.claim.name,
            entry.gpu,
            entry.mig_uuid,
            "" if entry.gi_id is None else str(entry.gi_id),
            "" if entry.ci_id is None else str(entry.ci_id),
            entry.profile,
        )


def _why_unavailable(entry: Entry) -> str:
    if entry.suspect:
        return "Suspect"
    if entry.state is State.TOMBSTONE:
        return GpuReason.GPU_LOST
    if not entry.note:
        return "Leaving"
    return "InUse" if code_name(NVML_ERROR_IN_USE) in entry.note else "Failing"


def _of_gpus(gpus: Sequence[Gpu]) -> Iterable[GaugeMetricFamily]:
    yield family(
        "gpu_unavailable",
        "1 for every GPU on which no slice can be made; reason is that of the MigNode.",
        ["gpu", "gpu_uuid", "reason"],
        [((g.name, g.uuid, g.reason), 1.0) for g in gpus if g.reason],
    )
    shown = {(g.name, i.profile, i.state.value, i.placement) for g in gpus for i in g.instances}
    states = Counter((gpu, profile, state) for gpu, profile, state, _ in shown)
    yield family(
        "slices",
        "GPU instances, and placements that are to become or cease to be one.",
        ["gpu", "profile", "state"],
        list(states.items()),
    )
