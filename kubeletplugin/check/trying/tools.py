"""Tools of a check beside NVML, which simulated machines have of their own."""

from __future__ import annotations

import subprocess
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

_PROBE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Place:
    """A slice: the GPU's UUID and minor, its instances' ids, and the MIG device's UUID."""

    gpu: str
    gpu_minor: int
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
        """Behaviour of an event wait while another process of ours shuts NVML down."""

    def attach(self) -> str:
        """GPUs whose device files a process of ours has open with one GPU's handle."""

    def lets_go(self) -> bool:
        """True if the plugin that runs on this node has no device file of NVIDIA's open."""


def run_probe(command: list[str]) -> str:
    """The one word that a probe prints; ``open`` where it did not come to that."""
    try:
        done = subprocess.run(  # noqa: S603 - our own program
            command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"open: {error}"
    return done.stdout.strip() or f"open: the probe ended with {done.returncode}"
