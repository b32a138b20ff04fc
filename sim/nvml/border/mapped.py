"""The library file that a process has mapped: a process keeps the file with which it began."""

import mmap
from pathlib import Path

from sim.nvml.files import driverpackage
from sim.nvml.state import MachineState


class MappedLibrary:
    """libnvidia-ml as it lay on the disk when the process loaded it; ``/proc/self/maps`` has it."""

    def __init__(self, state: MachineState) -> None:
        self.version = state.library_version or state.driver_version
        self._mapping: mmap.mmap | None = None
        found = driverpackage.library_file(Path(state.host_root), self.version)
        if found is not None:
            with found.open("rb") as file:
                self._mapping = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)

    def close(self) -> None:
        """The process is gone."""
        if self._mapping is not None:
            self._mapping.close()
            self._mapping = None
