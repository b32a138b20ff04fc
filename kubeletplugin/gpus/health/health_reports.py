"""Reports of health: events of GPUs that are lost, events and conditions of unhealthy devices."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from dra.claims.reasons import NodeReason
from dra.gpu.inventory import ClaimRef, Gpu
from dra.gpu.reasons import GpuReason
from kubeletplugin.gpus.health.device_health import DeviceProblem, device_problem
from kubeletplugin.journal.entries import HELD, Entry, EntryKey
from kubeletplugin.journal.journal import Journal
from kubeletplugin.telemetry.reports import Reports

_TOLD = frozenset(
    {
        GpuReason.GPU_LOST,
        GpuReason.RECOVERY_REQUIRED,
        GpuReason.RECOVERY_ADVISED,
        GpuReason.FABRIC_NOT_READY,
        GpuReason.COMPUTE_MODE,
        GpuReason.VIRTUALIZED,
        GpuReason.CONFIDENTIAL,
    }
)

RefreshStatus = Callable[[ClaimRef, Callable[[], Iterable[Entry]]], None]
"""Shows the devices of a claim, as they are when they are written."""


class HealthReports:
    """Tells what has changed since it was told last. For one thread at a time."""

    def __init__(
        self, journal: Journal, reports: Reports, *, refresh_status: RefreshStatus
    ) -> None:
        self._journal = journal
        self._reports = reports
        self._refresh_status = refresh_status
        self._told: dict[EntryKey, DeviceProblem] = {}
        self._ill: dict[str, Gpu] = {}

    def tell_gpus(self, seen: Collection[Gpu]) -> None:
        """Tell of GPUs that are lost or that the driver calls unusable, and when that is over."""
        ill = {g.uuid: g for g in seen if g.reason in _TOLD}
        for uuid, gpu in ill.items():
            before = self._ill.get(uuid)
            if before is None or before.reason != gpu.reason:
                self._reports.report_node(
                    NodeReason(gpu.reason), f"{gpu.name}: {gpu.unavailable}", warning=True
                )
        # Of a GPU that is released nothing is known.
        silent = {g.uuid for g in seen if g.reason == GpuReason.RELEASED}
        for uuid, gpu in self._ill.items():
            if uuid in silent:
                ill[uuid] = gpu
            elif uuid not in ill:
                over = "answers again" if gpu.reason == GpuReason.GPU_LOST else f"no {gpu.reason}"
                self._reports.report_node(NodeReason.RECOVERED, f"GPU {uuid}: {over}")
        self._ill = ill

    def tell_devices(self, gpus: Iterable[Gpu]) -> bool:
        """Tell of devices whose health has changed; ``gpus`` come with their problems."""
        by_uuid = {g.uuid: g for g in gpus}
        entries = {e.key: e for e in self._journal.entries() if e.state in HELD}
        self._told = {k: p for k, p in self._told.items() if k in entries}
        changed: dict[str, ClaimRef] = {}
        for key, entry in entries.items():
            problem = device_problem(entry, by_uuid.get(entry.gpu))
            if problem == self._told.get(key):
                continue
            changed[entry.claim.uid] = entry.claim
            if problem is None:
                del self._told[key]
                continue
            self._told[key] = problem
            if problem.reason != GpuReason.SLICE_LOST:  # which has an event of its own
                text = f"{entry.device}: {problem.message}"
                self._reports.report_claim(
                    entry.claim, NodeReason(problem.reason), text, warning=True
                )
        for ref in changed.values():
            self._refresh_status(ref, lambda uid=ref.uid: self._held(uid))  # type: ignore[misc]
        return bool(changed)

    def _held(self, uid: str) -> tuple[Entry, ...]:
        return tuple(e for e in self._journal.of_claim(uid) if e.state in HELD)
