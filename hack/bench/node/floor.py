"""Floors of a run: the driver that does the least, called just as the plugin is."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from dra.common.resources import MIG_NODES
from dra.gpu.inventory import ClaimRef
from dra.kube.client.transport import KubeApi
from hack.bench.node.figures import percentile
from hack.bench.node.least.__main__ import PARTS
from hack.bench.node.least.telling import MIG_NODE
from hack.bench.node.measures import Cycles, cycles
from hack.bench.node.node import NODE, Claims, Kubelet, Place, cpu_ms
from hack.cluster.machine.processes import Process
from hack.cluster.waiting import wait_for

_FIRST = 5
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
        environment = dict(os.environ)
        flags = ["--tells"] if tells else []
        if place.library is None:
            flags += ["--simulator", str(place.machine)]
        else:
            environment |= place.environment
        self._process = Process(
            self._directory.name,
            [
                *(sys.executable, "-m", "hack.bench.node.least", "--socket", str(self.socket)),
                *("--kubeconfig", str(place.kubeconfig), "--host-root", str(place.host_root)),
                *("--directory", str(self._directory), *flags),
            ],
            logs=place.root,
            environment=environment,
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


def measure(
    place: Place, api: KubeApi, claims: Claims, refs: Sequence[ClaimRef], *, pauses: Sequence[float]
) -> list[Floor]:
    """The floors with each of these pauses after a call, in seconds, while the plugin rests."""
    least, telling = LeastDriver(place, tells=False), LeastDriver(place, tells=True)
    quick = _run(least, claims, refs, pauses)
    parts = least.parts()
    _copy_mignode(api)
    told = _run(telling, claims, refs, pauses)
    api.delete(MIG_NODES, MIG_NODE)
    return [
        Floor(
            prepare=percentile(run.prepare, 0.5),
            unprepare=percentile(run.unprepare, 0.5),
            cpu=with_statuses.cpu,
            parts={
                part: percentile(of_pace(taken, index, len(refs)), 0.5)
                for part, taken in parts.items()
            },
        )
        for index, (run, with_statuses) in enumerate(zip(quick, told, strict=True))
    ]


def _run(
    driver: LeastDriver, claims: Claims, refs: Sequence[ClaimRef], pauses: Sequence[float]
) -> list[Cycles]:
    with driver.running():
        kubelet = Kubelet(driver.socket)
        cycles(driver, kubelet, claims, refs[:_FIRST], pause=0.0)
        found = [cycles(driver, kubelet, claims, refs, pause=pause) for pause in pauses]
        kubelet.close()
    return found


def of_pace(values: Sequence[float], index: int, count: int) -> Sequence[float]:
    """Values of the ``count`` Prepares of the pace with this index, after those that load it."""
    begin = _FIRST + index * count
    return values[begin : begin + count]


def _copy_mignode(api: KubeApi) -> None:
    """Make the MigNode of the least driver, as large as the plugin's."""
    found = api.get(MIG_NODES, NODE)
    made = api.create(MIG_NODES, {"metadata": {"name": MIG_NODE}, "spec": found["spec"]})
    api.replace(MIG_NODES, made | {"status": found["status"]}, subresource="status")
