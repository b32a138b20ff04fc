"""One simulated GPU with a journal and the parts that make and remove slices, without a daemon."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import sim.nvml
from dra.gpu.geometry import Placement
from dra.gpu.inventory import ClaimRef
from kubeletplugin.claims.slices import Slices
from kubeletplugin.gpus.gpu import GpuUnit
from kubeletplugin.gpus.hardware import Hardware
from kubeletplugin.gpus.identity import Identity
from kubeletplugin.journal.entries import Entry, EntryKey, State
from kubeletplugin.journal.journal import Journal
from kubeletplugin.nvml.gpus import discover
from kubeletplugin.nvml.session import Session
from sim.nvml.faults import Fault
from sim.nvml.machine import GpuSpec, Machine
from sim.nvml.products import Variants
from tests.kubeletplugin.helpers.rig import A100

BOOT = "boot"
PLACE, ELSEWHERE = Placement(4, 1), Placement(0, 1)
IN_USE, UNKNOWN = 19, 999
DESTROY_GI = "nvmlGpuInstanceDestroy"


class BenchHardware(Hardware):
    """The GPUs of a bench; ``looked_at`` are the UUIDs of those that were looked at."""

    def __init__(self, session: Session, unit: GpuUnit) -> None:
        self.session = session
        self.boot_id = BOOT
        self.identity = Identity(session, boot_id=BOOT)
        self.problems = ()
        self.found = {unit.uuid: unit}
        self.looked_at: list[str] = []

    def unit(self, uuid: str) -> GpuUnit | None:
        return self.found.get(uuid)

    def look_soon(self, uuid: str, read_back: Iterable[EntryKey] | None = None) -> None:
        self.looked_at.append(uuid)


class GpuBench:
    """One A100, a journal, and what makes and removes slices on it.

    ``forget`` puts the parts together anew, as a restart of the program does.
    """

    def __init__(
        self, folder: Path, *, variants: Variants | None = None, session: Session | None = None
    ) -> None:
        self.machine = Machine.create(folder / "hw", [GpuSpec(A100)], variants=variants)
        sim.nvml.install(self.machine.directory)
        self.session = session or Session()
        self.session.open()
        (card,) = discover(self.session).cards
        self.unit = GpuUnit(0, card, pcie_root="")
        self._state = folder / "state"
        self.journal = Journal(self._state / "journal.json")
        self.forget()

    def forget(self) -> None:
        self.hardware = BenchHardware(self.session, self.unit)
        self.identity = self.hardware.identity
        self.doubted: list[ClaimRef] = []
        self.slices = Slices(
            self.hardware,
            self.journal,
            holders=lambda _gpu, _pids: "; held by nv-hostengine (7)",
            doubt=self.doubted.append,
        )

    def entry(self, name: str, placement: Placement | None = PLACE, **changes: object) -> Entry:
        values: dict[str, object] = {
            "claim": ClaimRef("default", name, f"uid-{name}"),
            "device": f"gpu-0-mig-1g5gb-19-{placement.start}" if placement else "gpu-0",
            "state": State.INTENT,
            "gpu": self.unit.uuid,
            "boot_id": BOOT,
            "profile_id": 19,
            "profile": "1g.5gb",
            "placement": placement,
        }
        return Entry(**(values | changes))  # type: ignore[arg-type]

    def made(
        self, name: str, state: State, placement: Placement = PLACE, **changes: object
    ) -> Entry:
        """A slice that the entry stands for."""
        found = self.machine.create_slice(0, "1g.5gb", start=placement.start)
        entry = self.entry(
            name,
            placement,
            state=State.PREPARED,
            gi_id=found.gpu_instance,
            ci_id=found.compute_instance,
            mig_uuid=found.uuid,
        )
        entry = replace(entry, state=state, **changes)  # type: ignore[arg-type]
        self.journal.put(entry)
        return entry

    def bare(self, name: str) -> Entry:
        """The rest of a slice whose GPU instance the driver does not released."""
        entry = self.made(name, State.CI_DESTROYED, ci_id=None, mig_uuid="")
        self.destroy_compute_instances(entry)
        self.keep(DESTROY_GI)
        return entry

    def destroy_compute_instances(self, entry: Entry) -> None:
        """Somebody takes the compute instance out of an entry's GPU instance."""
        assert entry.gi_id is not None
        self.machine.destroy_compute_instances(0, entry.gi_id)

    def remake(self, entry: Entry) -> None:
        """Somebody removes an entry's slice and makes one like it: same place, same id."""
        assert entry.gi_id is not None
        assert entry.placement is not None
        self.machine.destroy_slice(0, entry.gi_id)
        again = self.machine.create_slice(0, "1g.5gb", start=entry.placement.start)
        assert again.gpu_instance == entry.gi_id

    def places(self) -> list[int]:
        return [g.start for g in self.machine.gpu(0).gpu_instances]

    def slices_now(self) -> list[tuple[int, int]]:
        """Start of each GPU instance, and the number of its compute instances."""
        return [(g.start, len(g.compute_instances)) for g in self.machine.gpu(0).gpu_instances]

    def states(self) -> list[State]:
        return [e.state for e in self.journal.entries()]

    def keep(self, function: str, code: int = IN_USE) -> None:
        """Calls of that function are refused until faults are cleared."""
        fault = Fault(id=function, function=function, action="return", code=code, times=0)
        self.machine.inject(fault)

    def fill_disk(self) -> None:
        """Nothing can be written to the journal until ``empty_disk``."""
        self._state.mkdir(exist_ok=True)
        self._state.rename(self._state.with_name("away"))
        self._state.write_text("")
