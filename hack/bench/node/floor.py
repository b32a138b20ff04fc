"""Floor of a run: what every driver needs for a claim on this machine, measured one by one."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pynvml

import sim.nvml
from cdi.files import write_durably
from dra.common.resources import RESOURCE_CLAIMS
from dra.gpu.inventory import ClaimRef
from dra.kube.client.transport import KubeApi
from hack.bench.node.figures import percentile
from hack.bench.node.node import Kubelet, Place

PREPARE_WRITES = 3
"""Durable writes of a Prepare: begun, CDI spec, prepared. NVIDIA's driver makes the same three."""
UNPREPARE_WRITES = 1
NVML_CALLS = 30
"""NVML calls for one slice, made or removed, and read back."""
_ROUNDS = 50
_RECORD = b"x" * 4000


@dataclass(frozen=True, slots=True)
class Floor:
    """Medians in milliseconds: an empty call, a durable write, an NVML call, a GET of a claim."""

    empty: float
    write: float
    nvml: float
    get: float

    @property
    def prepare(self) -> float:
        """Floor of NodePrepareResources."""
        return self.empty + PREPARE_WRITES * self.write + NVML_CALLS * self.nvml + self.get

    @property
    def unprepare(self) -> float:
        """Floor of NodeUnprepareResources, which needs no API server."""
        return self.empty + UNPREPARE_WRITES * self.write + NVML_CALLS * self.nvml


def measure(place: Place, kubelet: Kubelet, api: KubeApi, ref: ClaimRef) -> Floor:
    """Measure it, while the plugin rests; ``ref`` is a claim to read."""
    folder = place.root / "floor"
    folder.mkdir(exist_ok=True)
    return Floor(
        empty=percentile((kubelet.empty() for _ in range(_ROUNDS)), 0.5),
        write=_median(lambda: write_durably(folder / "record", _RECORD)),
        nvml=_nvml(place),
        get=_median(lambda: api.get(RESOURCE_CLAIMS, ref.name, namespace=ref.namespace)),
    )


def _nvml(place: Place) -> float:
    if place.library is None:
        sim.nvml.install(place.machine)
    else:
        os.environ["NVML_MACHINE"] = str(Path(place.machine / "nvml.txt"))
        pynvml.nvmlLib = ctypes.CDLL(str(place.library))
    pynvml.nvmlInit()
    try:
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        return _median(lambda: pynvml.nvmlDeviceGetMigMode(device))
    finally:
        pynvml.nvmlShutdown()
        sim.nvml.end()


def _median(work: Callable[[], object]) -> float:
    taken: list[float] = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        work()
        taken.append(1e3 * (time.perf_counter() - began))
    return percentile(taken, 0.5)
