"""Floors of a run: the driver that does the least, called just as the plugin is."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from dra.common.resources import MIG_NODES
from dra.kube.client import KubeApi
from hack.bench.node.figures import percentile
from hack.bench.node.least.__main__ import PARTS
from hack.bench.node.least.telling import MIG_NODE
from hack.bench.node.measures import Cycles
from hack.bench.node.node import NODE, Place, cpu_ms
from hack.cluster.machine.processes import Process
from hack.cluster.waiting import wait_for

LOADING = 5
"""Claims that load what is loaded on first use."""


@dataclass(frozen=True, slots=True)
class Floor:
    """Medians in milliseconds at one pace; ``parts`` of a Prepare: ``get``, ``nvml``, ``writes``.

    ``cpu`` is that of both calls, with the claim's status and the MigNode written after each.
    """

    prepare: float
    unprepare: float
    cpu: float
    parts: Mapping[str, float]


class LeastDriver:
    """The least driver as a process of its own; enter ``running`` to start it."""

    def __init__(self, place: Place, *, tells: bool) -> None:
        self._directory = place.root / ("telling" if tells else "least")
        self.socket = self._directory / "s"
        flags = ["--tells"] if tells else []
        if place.library is None:
            flags += ["--simulator", str(place.machine)]
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

    def parts(self) -> dict[str, list[float]]:
        """Milliseconds of each Prepare's parts, once it has ended."""
        return msgspec.json.decode((self._directory / PARTS).read_bytes())  # type: ignore[no-any-return]

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


def floor(quick: Cycles, told: Cycles, parts: Mapping[str, Sequence[float]]) -> Floor:
    """The floor of one pace: of the driver that tells nobody, and the CPU of the one that does."""
    return Floor(
        prepare=percentile(quick.prepare, 0.5),
        unprepare=percentile(quick.unprepare, 0.5),
        cpu=told.cpu,
        parts={part: percentile(taken, 0.5) for part, taken in parts.items()},
    )


def of_pace(values: Sequence[float], index: int, count: int) -> Sequence[float]:
    """Values of the ``count`` Prepares of the pace with this index, after those that load it."""
    begin = LOADING + index * count
    return values[begin : begin + count]


def _copy_mignode(api: KubeApi) -> None:
    """Make the MigNode of the least driver, as large as the plugin's."""
    found = api.get(MIG_NODES, NODE)
    made = api.create(MIG_NODES, {"metadata": {"name": MIG_NODE}, "spec": found["spec"]})
    api.replace(MIG_NODES, made | {"status": found["status"]}, subresource="status")
