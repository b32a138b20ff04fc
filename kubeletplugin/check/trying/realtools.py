"""Tools of a check on a real node: CUDA from the driver's own library, and processes of Python."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kubeletplugin.check.errors import CheckError
from kubeletplugin.check.probes.capabilitynodes import capability_nodes
from kubeletplugin.check.running import holds_devices, plugins
from kubeletplugin.check.trying.tools import Place, run_probe
from kubeletplugin.host.roots import Roots


class RealTools:
    """CUDA from the driver's own library, and Python processes; ``libcuda`` is None if unknown."""

    def __init__(self, roots: Roots, libcuda: Path | None, *, dev: Path = Path("/dev")) -> None:
        self._roots = roots
        self._dev = dev
        self._libcuda = libcuda

    @contextmanager
    def hold(self, place: Place) -> Iterator[int]:
        """Run a program that makes a CUDA context in the slice and waits."""
        if self._libcuda is None:
            raise CheckError("libcuda was not found, so no program can use the slice")
        with capability_nodes(self._roots, place, dev=self._dev), self._program(place) as pid:
            yield pid

    @contextmanager
    def _program(self, place: Place) -> Iterator[int]:
        command = [sys.executable, "-m", "kubeletplugin.check.probes.cudahold", str(self._libcuda)]
        with subprocess.Popen(  # noqa: S603 - our own program
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": place.uuid},
        ) as process:
            try:
                said = process.stdout.readline().strip() if process.stdout else ""
                if said != "ready":
                    raise CheckError(f"no program can use the slice: {said or 'it ended'}")
                yield process.pid
            finally:
                process.kill()

    def shutdown(self) -> str:
        """Run the probe in a process of its own, which may hang."""
        return run_probe([sys.executable, "-m", "kubeletplugin.check.probes.shutdownprobe"])

    def attach(self) -> str:
        """Run the probe in a process of its own."""
        return run_probe([sys.executable, "-m", "kubeletplugin.check.probes.attachprobe"])

    def lets_go(self) -> bool:
        """Look at the open files of every plugin that can be seen; False if none can."""
        found = [holds_devices(folder) for folder in plugins(self._roots)]
        return bool(found) and not any(found)
