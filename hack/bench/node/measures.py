"""Measurements: paced calls, calls back to back and bursts, of the plugin and of the floor."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Barrier
from typing import Protocol

from dra.common.resources import MIG_NODES
from dra.gpu.inventory import ClaimRef
from dra.gpu.names import mig_device
from dra.kube.client import KubeApi
from hack.bench.node.least import MIG_NODE
from hack.bench.node.node import NODE, Claims, Kubelet, Place, Plugin, cpu_ms
from sim.nvml.machine import Machine
from sim.processes import Process, wait_for

_BLOCKS = 5


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that at least ``share`` of the values do not exceed.

    Raises:
        ValueError: there are no values.
    """
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


@dataclass(frozen=True, slots=True)
class Cycles:
    """Milliseconds of the calls of some claims, and of the plugin's CPU for each of them."""

    prepare: list[float]
    unprepare: list[float]
    cpu: float


class Driver(Protocol):
    """A driver in a process of its own."""

    def cpu_ms(self) -> float:
        """CPU time that it has used so far."""
        ...


def smallest_slices(machine: Machine) -> list[str]:
    """Devices of the smallest profile on all GPUs, by turns of GPUs."""
    product = machine.product(0)
    profile = min(product.gi_profiles, key=lambda p: (p.slice_count, p.size, p.enum))
    return [
        str(mig_device(gpu, profile.name, profile_id=profile.id, start=start))
        for start in profile.starts
        for gpu in range(len(machine.state().gpus))
    ]


def cycles(
    driver: Driver, kubelet: Kubelet, claims: Claims, refs: Sequence[ClaimRef], *, pause: float
) -> Cycles:
    """Prepare and unprepare claims one after the other, with ``pause`` seconds after each call."""
    before = driver.cpu_ms()
    prepare: list[float] = []
    unprepare: list[float] = []
    for ref in refs:
        prepare.append(kubelet.prepare(ref))
        time.sleep(pause)
        unprepare.append(kubelet.unprepare(ref))
        time.sleep(pause)
    settle(claims, refs)
    return Cycles(prepare, unprepare, (driver.cpu_ms() - before) / len(refs))


def by_turns(
    drivers: Sequence[tuple[Driver, Kubelet, Sequence[ClaimRef]]], claims: Claims, *, pause: float
) -> list[Cycles]:
    """The cycles of several drivers, in blocks by turns: what else runs holds up all alike."""
    blocks: list[list[Cycles]] = [[] for _ in drivers]
    for number in range(_BLOCKS):
        for done, (driver, kubelet, refs) in zip(blocks, drivers, strict=True):
            done.append(cycles(driver, kubelet, claims, refs[number::_BLOCKS], pause=pause))
    return [joined(done) for done in blocks]


def joined(blocks: Sequence[Cycles]) -> Cycles:
    """Cycles of blocks that need not be of one length."""
    count = sum(len(b.prepare) for b in blocks)
    return Cycles(
        prepare=[taken for b in blocks for taken in b.prepare],
        unprepare=[taken for b in blocks for taken in b.unprepare],
        cpu=sum(b.cpu * len(b.prepare) for b in blocks) / count,
    )


def burst(kubelet: Kubelet, refs: Sequence[ClaimRef]) -> float:
    """Milliseconds until the last of claims is prepared that are all asked for at once."""
    barrier = Barrier(len(refs) + 1)

    def one(ref: ClaimRef) -> None:
        barrier.wait()
        kubelet.prepare(ref)

    with ThreadPoolExecutor(len(refs)) as pool:
        calls = [pool.submit(one, ref) for ref in refs]
        barrier.wait()
        began = time.perf_counter()
        for call in calls:
            call.result()
        return 1e3 * (time.perf_counter() - began)


def settle(claims: Claims, refs: Sequence[ClaimRef]) -> None:
    """Wait until MigNode and the last claim's status show what is there: nothing."""
    wait_for("an empty MigNode", lambda: claims.instances() == 0)
    wait_for("empty statuses", lambda: not claims.shown(refs[-1]))


def rest(plugin: Plugin, seconds: float) -> float:
    """CPU of a plugin that nobody asks for anything, in percent of a core."""
    before, began = plugin.cpu_ms(), time.monotonic()
    time.sleep(seconds)
    return (plugin.cpu_ms() - before) / (time.monotonic() - began) / 10


LOADING = 5
"""Claims that load what is loaded on first use."""


@dataclass(frozen=True, slots=True)
class Floor:
    """Medians in milliseconds at one pace.

    ``cpu`` is that of both calls, with the claim's status and the MigNode written after each.
    """

    prepare: float
    unprepare: float
    cpu: float


class LeastDriver:
    """The least driver as a process of its own; enter ``running`` to start it."""

    def __init__(self, place: Place, *, tells: bool) -> None:
        self._directory = place.root / ("telling" if tells else "least")
        self.socket = self._directory / "s"
        flags = ["--tells"] if tells else []
        self._process = Process(
            self._directory.name,
            [
                *(sys.executable, "-m", "hack.bench.node.least", "--socket", str(self.socket)),
                *("--kubeconfig", str(place.kubeconfig), "--host-root", str(place.host_root)),
                *("--directory", str(self._directory), *flags),
            ],
            logs=place.root,
            environment=os.environ | place.environment,
        )

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run it; entered once it serves."""
        self._directory.mkdir()
        self._process.start()
        try:
            wait_for("the least driver", self._serves)
            yield
        finally:
            self._process.stop()

    def cpu_ms(self) -> float:
        """CPU time that it has used so far."""
        return cpu_ms(self._process.pid)

    def _serves(self) -> bool:
        self._process.assert_running()
        return self.socket.exists()


@contextmanager
def least_drivers(place: Place, api: KubeApi) -> Iterator[tuple[LeastDriver, LeastDriver]]:
    """Two of them, the second of which writes statuses; the plugin's MigNode is there."""
    least, telling = LeastDriver(place, tells=False), LeastDriver(place, tells=True)
    _copy_mignode(api)
    with least.running(), telling.running():
        yield least, telling
    api.delete(MIG_NODES, MIG_NODE)


def floor(quick: Cycles, told: Cycles) -> Floor:
    """The floor of one pace: of the driver that tells nobody, and the CPU of the one that does."""
    return Floor(percentile(quick.prepare, 0.5), percentile(quick.unprepare, 0.5), told.cpu)


def _copy_mignode(api: KubeApi) -> None:
    """Make the MigNode of the least driver, as large as the plugin's."""
    found = api.get(MIG_NODES, NODE)
    metadata = {"name": MIG_NODE}
    made = api.create(MIG_NODES, {**found, "metadata": metadata})
    api.replace(MIG_NODES, made | {"status": found["status"]}, subresource="status")
