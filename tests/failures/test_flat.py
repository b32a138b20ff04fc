"""Preparing and unpreparing for ever costs nothing that stays: descriptors, threads, memory."""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from api.kubelet.dra.v1 import api_pb2 as v1
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.helpers.rig import Rig, wire

SOAK = bool(os.environ.get("MIG_SOAK"))
CYCLES = 10_000 if SOAK else 120
SAMPLES = 20
SLICES = ("gpu-0-mig-1g5gb-19-4", "gpu-1-mig-2g10gb-14-0")
MOST_KIB_PER_CYCLE = 0.1 if SOAK else 12.0
"""Of the second half: a leak of one journal entry per cycle would be more than 1 KiB."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What a process holds."""

    descriptors: int
    threads: int
    rss_kib: int

    @classmethod
    def of(cls, pid: int) -> Sample:
        """Now."""
        folder = Path(f"/proc/{pid}")
        fields = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
        return cls(
            len(list((folder / "fd").iterdir())),
            int(fields["Threads"]),
            int(fields["VmRSS"].split()[0]),
        )


def slope(values: list[int]) -> float:
    """Growth from one sample to the next, by least squares."""
    middle, mean = (len(values) - 1) / 2, sum(values) / len(values)
    spread = sum((i - middle) ** 2 for i in range(len(values)))
    return sum((i - middle) * (v - mean) for i, v in enumerate(values)) / spread


def growth(values: list[int]) -> float:
    """Median growth from one sample to the next: a MiB that an allocator takes at once is none."""
    return statistics.median(after - before for before, after in itertools.pairwise(values))


@pytest.fixture
def program(make_rig: Callable[..., Rig]) -> Iterator[tuple[Rig, int]]:
    """A node whose plugin is a process of its own, and that process."""
    rig = make_rig()
    command = [
        *(sys.executable, "-m", "sim", "plugin", "--hardware", str(rig.machine.directory)),
        *("--", "--node-name", rig.node, "--kubeconfig", str(rig.kubeconfig)),
        *("--kubelet-root", str(rig.roots.kubelet), "--cdi-root", str(rig.roots.cdi)),
        *("--state-dir", str(rig.roots.state), "--log-level", "error"),
    ]
    process = subprocess.Popen(command)
    try:
        wait_for("the socket", rig.registration_socket.exists)
        yield rig, process.pid
    finally:
        process.terminate()
        try:
            process.wait(30)
        finally:
            process.kill()


@pytest.mark.timeout(7200)
def test_thousands_of_cycles_leave_descriptors_threads_and_memory_flat(
    program: tuple[Rig, int],
) -> None:
    rig, pid = program
    refs = [rig.claim(device) for device in SLICES]
    samples: list[Sample] = []
    with closing(rig.channel(rig.service_socket)) as channel:
        stub = rig.stub(channel)
        for cycle in range(CYCLES):
            claims = [wire(ref) for ref in refs]
            prepared = stub.NodePrepareResources(
                v1.NodePrepareResourcesRequest(claims=claims), timeout=45
            )
            assert not [a.error for a in prepared.claims.values() if a.error], prepared
            unprepared = stub.NodeUnprepareResources(
                v1.NodeUnprepareResourcesRequest(claims=claims), timeout=45
            )
            assert not [a.error for a in unprepared.claims.values() if a.error], unprepared
            if cycle % (CYCLES // SAMPLES) == 0:
                samples.append(Sample.of(pid))
                print(f"{cycle} cycles: {samples[-1]}")  # noqa: T201
    wait_for("nothing to be left", rig.clean)
    later = samples[SAMPLES // 2 :]
    print(f"{CYCLES} cycles; the second half from {later[0]} to {later[-1]}")  # noqa: T201
    per_sample = CYCLES / SAMPLES
    assert max(s.descriptors for s in later) - min(s.descriptors for s in later) <= 8
    assert abs(slope([s.descriptors for s in later])) < 0.5
    assert abs(slope([s.threads for s in later])) < 0.5
    assert growth([s.rss_kib for s in later]) / per_sample < MOST_KIB_PER_CYCLE
