"""What a check does beside NVML: running a CUDA program in a slice, and a probe in a process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kubeletplugin.check.errors import CheckError
from kubeletplugin.check.running import holds_devices, plugins
from kubeletplugin.roots import Roots

_PROBE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Place:
    """A slice: the GPU's UUID, its instances' ids, and the MIG device's UUID."""

    gpu: str
    gi_id: int
    ci_id: int
    uuid: str


class Tools(Protocol):
    """Simulated machines have their own."""

    def hold(self, place: Place) -> AbstractContextManager[int]:
        """A process that uses a slice for as long as the block lasts; its pid.

        Raises:
            CheckError: none can be started here.
        """

    def shutdown(self) -> str:
        """What an event wait does while another process of ours shuts NVML down."""

    def attach(self) -> str:
        """Which GPUs' device files a process of ours has open with one GPU's handle."""

    def lets_go(self) -> bool:
        """Whether the plugin that runs on this node has no device file of NVIDIA's open."""


class RealTools:
    """CUDA from the driver's own library, and Python processes; ``libcuda`` is None if unknown."""

    def __init__(self, roots: Roots, libcuda: Path | None) -> None:
        self._roots = roots
        self._libcuda = libcuda

    @contextmanager
    def hold(self, place: Place) -> Iterator[int]:
        """Run a program that makes a CUDA context in the slice and waits."""
        if self._libcuda is None:
            raise CheckError("libcuda was not found, so no program can use the slice")
        command = [sys.executable, "-m", "kubeletplugin.check.cudahold", str(self._libcuda)]
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
        return run_probe([sys.executable, "-m", "kubeletplugin.check.shutdownprobe"])

    def attach(self) -> str:
        """Run the probe in a process of its own."""
        return run_probe([sys.executable, "-m", "kubeletplugin.check.attachprobe"])

    def lets_go(self) -> bool:
        """Look at the open files of every plugin that can be seen; False if none can."""
        found = [holds_devices(folder) for folder in plugins(self._roots)]
        return bool(found) and not any(found)


def run_probe(command: list[str]) -> str:
    """The one word that a probe prints; ``open`` where it did not come to that."""
    try:
        done = subprocess.run(  # noqa: S603 - our own program
            command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"open: {error}"
    return done.stdout.strip() or f"open: the probe ended with {done.returncode}"
