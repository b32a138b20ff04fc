"""Fakes around one simulated GPU for what works on whole claims: node, CDI specs, events."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dra.common.resources import Obj
from dra.kube.client import KubeApi
from dra.monitoring.probes import Probes
from kubeletplugin.claims.removal import ClaimRemoval, IdleSlices
from kubeletplugin.claims.sharing.sharing import DeviceSharing
from kubeletplugin.claims.specs import Specs
from kubeletplugin.common import Common, Listeners
from kubeletplugin.errors import HostError
from kubeletplugin.host.driverfiles import Needs
from kubeletplugin.host.roots import Roots
from kubeletplugin.journal.entries import Entry
from kubeletplugin.options import Options
from kubeletplugin.telemetry.observer import Action, NodeObserver
from kubeletplugin.telemetry.probes import Liveness, Readiness
from kubeletplugin.telemetry.reports import Reports
from tests.dra.kube.clocks import FakeClock
from tests.failures.helpers.folderapi import FolderHttp
from tests.kubeletplugin.helpers.gpubench import GpuBench


class MemorySpecs(Specs):
    """CDI specs by claim, as the devices in them, and that which claims have in common.

    ``failure`` is raised by each method.
    """

    def __init__(self) -> None:
        self.files: dict[str, list[str]] = {}
        self.has_common = True
        self.failure: HostError | None = None

    def write(self, entries: Sequence[Entry], needs: Needs | None = None) -> None:
        self._fail()
        self.files[entries[0].claim.uid] = [e.device for e in entries]

    def remove(self, claim_uid: str) -> None:
        self._fail()
        self.files.pop(claim_uid, None)

    def remove_common(self) -> None:
        self._fail()
        self.has_common = False

    def claims(self) -> frozenset[str]:
        self._fail()
        return frozenset(self.files)

    def sweep(self, keep: set[str]) -> int:
        self._fail()
        gone = self.files.keys() - keep
        for uid in gone:
            del self.files[uid]
        return len(gone)

    def _fail(self) -> None:
        if self.failure is not None:
            raise self.failure


class Events:
    """Takes events; ``seen`` has kind of object, reason, message, and whether it is a warning."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str, bool]] = []

    def emit(self, regarding: Obj, reason: str, message: str, *, warning: bool = False) -> None:
        self.seen.append((regarding["kind"], reason, message, warning))

    def reasons(self) -> list[tuple[str, str, bool]]:
        """The events without their messages."""
        return [(kind, reason, warning) for kind, reason, _, warning in self.seen]


class Acts(NodeObserver):
    """Remembers what the node did of its own accord."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Action] = []

    def acted(self, action: Action) -> None:
        self.seen.append(action)


class NodeBench(GpuBench):
    """One A100 in a node, with what is put together around it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.specs = MemorySpecs()
        self.events = Events()
        self.acts = Acts()
        self.clock = FakeClock()
        self.reports = Reports(self.events, "node-1")
        nobody: Any = SimpleNamespace()
        telemetry: Any = SimpleNamespace(metrics=self.acts, liveness=Liveness(Probes()))
        self.common = Common(
            Options(node_name="node-1", roots=Roots(folder, folder, folder, folder, folder)),
            KubeApi(FolderHttp(folder / "api")),
            telemetry,
            Listeners(),
            nobody,
            self.reports,
            Readiness(on_change=lambda: None),
            self.journal,
            self.clock,
        )
        self.sharing = DeviceSharing(self.common, self.hardware, self.specs.driver_files)
        self.removal = ClaimRemoval(
            self.common,
            self.slices,
            self.specs,
            self.sharing,
            idle=IdleSlices(self.hardware, seconds=0.0, leaves=lambda _: False, clock=self.clock),
        )
