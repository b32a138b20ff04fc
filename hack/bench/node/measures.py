"""Measurements of one plugin: paced calls, calls back to back, bursts, memory and rest."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier
from typing import Protocol

from dra.gpu.inventory import ClaimRef
from dra.gpu.names import mig_device
from hack.bench.node.node import Claims, Kubelet, Plugin
from hack.cluster.waiting import wait_for
from sim.nvml.machine import Machine

_BLOCKS = 5


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


def empty(kubelet: Kubelet, count: int, *, pause: float) -> list[float]:
    """Milliseconds of calls without a claim, with ``pause`` seconds after each."""
    taken: list[float] = []
    for _ in range(count):
        taken.append(kubelet.empty())
        time.sleep(pause)
    return taken


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
