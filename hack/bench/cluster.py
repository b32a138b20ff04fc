"""Pods bound per second on a real control plane: ``python -m hack.bench.cluster``.

Our controller, as a process, against kube-scheduler with partitionable devices, in one run on the
same nodes: pods made in one burst until all are bound, and one at a time. The nodes have eight
simulated A100 each and no kubelet. Everything shares the machine, so compare the rows of one run.

Each burst follows one that is not counted, because a new API server keeps so little of each watch
that a burst ends them, and a new controller knows no selector yet. Rows take turns, as the machine
may do other work at times; the rate is the median of several rounds.

In the row "controller" the API server puts the finalizer on claims, by the policy of the chart.
The row "allocated before" is what the control plane itself can do: the claims are allocated before
their pods are made, and kube-scheduler reserves them, which the controller does with the
allocation. In the row "steered" pods have the controller's gate, the nodes are those of the row
"kube-scheduler", and the controller nominates one of them for each pod.

A rate says little where the machine does other work besides. Each row also has the CPU time of all
processes for each pod of its bursts. "cores" is all CPU time by the duration of the bursts: where
that is as many as the machine has, it is the limit, and the rates are as the CPU times. "MiB" is
the most memory that the controller had.

The rate limit of kube-scheduler towards the API server (``--kube-api-qps``) is raised for most
rows, because it would be all that is measured; 50 is its default, which a real cluster has.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Self

import click

from dra.claims.conditions import sent_to
from dra.common.resources import PODS, RESOURCE_CLAIMS, Obj, Resource
from dra.gpu.inventory import AllocatorKind
from dra.gpu.names import DEFAULT_DRIVER, finalizer
from dra.kube.reflector import Change, Reflector
from hack.bench import objects
from hack.bench.objects import MIXES, geometry, sizes
from hack.bench.site import Seconds, Site, each, real
from hack.cluster.binaries import CONTROL_PLANE, find_binaries

SECONDS = 60.0
"""Bound on a burst, and duration of the steady part; seconds."""
HEADER = (
    "nodes",
    "qps",
    "bound",
    "pods/s",
    "x slowest",
    "p50 ms",
    "p90 ms",
    "cores",
    "CPU ms",
    "MiB",
)
CONTROLLER, BEFORE, STEERED, SCHEDULER = ROWS = (
    "controller",
    "allocated before",
    "steered",
    "kube-scheduler",
)
LEAST = 0.05
"""Figures below are left out of the details."""
WARM_UP_PODS = 100
WARM_UP_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Load:
    """Load on a cluster of ``nodes`` nodes; the mix of profiles has weights."""

    nodes: int
    qps: int
    pods: int
    bursts: int
    single: int
    mix: dict[str, float]


@dataclass(frozen=True, slots=True)
class Burst:
    """``bound`` of ``pods`` were bound within ``seconds`` from the first creation to the last.

    ``cpu`` is the time of each process until then, ``moments`` when each was bound, and ``waits``
    how long after it was asked for, in seconds; ``mib`` what the controller had at most.
    ``as_nominated``: how many the controller sent to the node where they were bound.
    """

    pods: int
    bound: int
    seconds: float
    cpu: Seconds
    mib: int
    moments: tuple[float, ...] = ()
    waits: tuple[float, ...] = ()
    as_nominated: int = 0

    @property
    def rate(self) -> float:
        """Pods bound per second."""
        return self.bound / self.seconds if self.bound else 0.0


class Bindings:
    """Makes pods, each with a claim of its own for one slice, and watches them being bound.

    Claims draw from the load's mix. They are there before their pods, and ``made`` is called with
    the name of each.
    """

    def __init__(
        self,
        site: Site,
        load: Load,
        *,
        made: Callable[[str], object] = lambda _: None,
        gate: str = "",
    ) -> None:
        self._site = site
        api = self._api = site.api
        self._profiles = load.mix
        self._made = made
        self._gates = {"schedulingGates": [{"name": gate}]} if gate else {}
        self._draw = random.Random(load.nodes)
        self._numbers = itertools.count()
        self._bound: dict[str, float] = {}
        self._as_nominated: set[str] = set()
        self._changed = threading.Condition()
        self._mirror = Reflector(api, PODS, field_selector="spec.nodeName!=", on_event=self._take)

    def __enter__(self) -> Self:
        self._mirror.start()
        self._mirror.wait_synced(None)
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()
        self._mirror.stop()

    def burst(self, count: int, *, limit_seconds: float) -> Burst:
        """Make ``count`` pods and wait until all are bound, or the time is over."""
        pods = self._prepare(count)
        before = self._site.cpu_seconds()
        started = time.monotonic()
        asked: dict[str, float] = {}

        def create(pod: Obj) -> None:
            asked[pod["metadata"]["name"]] = time.monotonic()
            self._api.create(PODS, pod)

        each(create, pods)
        names = [pod["metadata"]["name"] for pod in pods]
        with self._changed:
            self._changed.wait_for(
                lambda: all(name in self._bound for name in names),
                timeout=max(0.0, started + limit_seconds - time.monotonic()),
            )
            bound = [self._bound[name] for name in names if name in self._bound]
            waits = [self._bound[name] - asked[name] for name in names if name in self._bound]
        # Of an unfinished burst the whole time counts, that of the pods still waiting included.
        last = max(bound) if len(bound) == count else time.monotonic()
        moments = tuple(sorted(moment - started for moment in bound))
        cpu = {n: s - before.get(n, 0.0) for n, s in self._site.cpu_seconds().items()}
        mib = self._site.memory_mib()
        sent = len(self._as_nominated.intersection(names))
        return Burst(
            count, len(bound), last - started, cpu, mib, moments, tuple(sorted(waits)), sent
        )

    def singly(self, count: int, *, limit_seconds: float) -> list[float]:
        """Seconds from the creation of a pod to its binding, one pod after the other."""
        times = []
        ends = time.monotonic() + limit_seconds
        for _ in range(count):
            if time.monotonic() > ends:
                break
            (pod,) = self._prepare(1)
            name = pod["metadata"]["name"]
            started = time.monotonic()
            self._api.create(PODS, pod)
            with self._changed:
                if self._changed.wait_for(lambda n=name: n in self._bound, timeout=limit_seconds):  # type: ignore[misc]
                    times.append(self._bound[name] - started)
        return times

    def clear(self) -> None:
        """Delete all pods and claims, and wait until they are gone."""
        pods = self._api.list(PODS, namespace="default").items
        each(lambda p: self._delete(PODS, p), pods)
        claims = self._api.list(RESOURCE_CLAIMS, namespace="default").items
        each(lambda c: self._delete(RESOURCE_CLAIMS, c), claims)
        ends = time.monotonic() + 120
        while left := self._api.list(RESOURCE_CLAIMS, namespace="default").items:
            if time.monotonic() > ends:
                raise TimeoutError(f"{len(left)} claims stay, such as {left[0]['metadata']}")
            time.sleep(0.2)

    def _prepare(self, count: int) -> list[Obj]:
        """Pods to create, whose claims exist."""
        named = self._draw_names(count)
        each(lambda n: self._make(*n), named)
        pods = [objects.pod(name, resourceClaimName=name) for name, _ in named]
        return [{**pod, "spec": {**pod["spec"], **self._gates}} for pod in pods]

    def _draw_names(self, count: int) -> list[tuple[str, str]]:
        """Names of claims to be made, each with its profile."""
        weights = [*self._profiles.values()]
        drawn = self._draw.choices([*self._profiles], weights, k=count)
        return [(f"bench-{next(self._numbers)}", profile) for profile in drawn]

    def _make(self, name: str, profile: str) -> None:
        self._api.create(RESOURCE_CLAIMS, objects.claim(name, profile))
        self._made(name)

    def _delete(self, resource: Resource, obj: Obj) -> None:
        name = obj["metadata"]["name"]
        self._api.delete(resource, name, namespace="default", grace_seconds=0)

    def _take(self, change: Change) -> None:
        if change.new is not None:
            name = change.new["metadata"]["name"]
            with self._changed:
                self._bound.setdefault(name, time.monotonic())
                if sent_to(change.new, driver=DEFAULT_DRIVER) == change.new["spec"]["nodeName"]:
                    self._as_nominated.add(name)
                self._changed.notify_all()


@dataclass(frozen=True, slots=True)
class Row:
    """Bursts, and the seconds that pods one at a time took."""

    who: str
    bursts: list[Burst]
    times: list[float]

    @property
    def cpu(self) -> Seconds:
        """CPU time by process, of all bursts."""
        names = dict.fromkeys(name for burst in self.bursts for name in burst.cpu)
        return {name: sum(burst.cpu.get(name, 0.0) for burst in self.bursts) for name in names}

    @property
    def pods(self) -> int:
        """Pods of all bursts."""
        return sum(burst.pods for burst in self.bursts)

    @property
    def cores(self) -> float:
        """Cores that were in use during the bursts, on average."""
        return sum(self.cpu.values()) / sum(burst.seconds for burst in self.bursts)

    @property
    def rate(self) -> float:
        """Pods bound per second in the burst in the middle."""
        return median(burst.rate for burst in self.bursts)

    @property
    def bound(self) -> str:
        """Pods that were bound, of all in bursts."""
        return f"{sum(b.bound for b in self.bursts)}/{self.pods}"


@click.command()
@click.option("--nodes", "sizes_", multiple=True, type=int, help="Nodes of eight GPUs; repeatable.")
@click.option("--pods", default=300, show_default=True, help="Pods in a burst.")
@click.option("--bursts", default=3, show_default=True, help="Rounds: the rate is the median's.")
@click.option("--single", default=20, show_default=True, help="Pods one at a time, per burst.")
@click.option("--only", multiple=True, type=click.Choice(ROWS), help="A row; repeatable.")
@click.option(
    "--scheduler-qps",
    "limits",
    multiple=True,
    default=(1000, 50),
    show_default=True,
    help="Rate limit of kube-scheduler, whose default is 50; repeatable.",
)
@click.option("--product", default="A100-SXM4-80GB", show_default=True)
def main(  # noqa: PLR0913 - one parameter per option
    *,
    sizes_: tuple[int, ...],
    pods: int,
    bursts: int,
    single: int,
    only: tuple[str, ...],
    limits: tuple[int, ...],
    product: str,
) -> None:
    """Compare our controller with kube-scheduler on clusters of several sizes."""
    binaries = find_binaries(os.environ, home=Path.home())
    if reason := binaries.missing(CONTROL_PLANE):
        click.echo(f"skipped: {reason}")
        return
    shape = geometry(product)
    mix = dict(zip(sizes(shape), MIXES["uniform"], strict=True))
    header = f"{'allocated by':<18}" + "".join(f"{name:>10}" for name in HEADER)
    for nodes, qps in itertools.product(sizes_ or (30, 100, 300), limits):
        load, wanted = Load(nodes, qps, pods, bursts, single, mix), {*(only or ROWS)}
        flags = {"kube_api_qps": str(qps), "kube_api_burst": str(2 * qps)}
        inventories = [objects.inventory(f"node-{n:04}", shape) for n in range(nodes)]
        with real(binaries, **flags) as plane:
            site = Site(plane, inventories)
            site.make_nodes()
            rows = _rounds(site, load, wanted)
        for row in rows:
            click.echo(details(row))
        click.echo(header)
        for row in rows:
            click.echo(_text(row, load, min(row.rate for row in rows)))


def _rounds(site: Site, load: Load, wanted: set[str]) -> list[Row]:
    """Rows with a burst of each round."""
    rows: dict[str, Row] = {}
    for number in range(load.bursts):
        for row in _rows(site, load, wanted):
            known = rows.setdefault(row.who, Row(row.who, [], []))
            known.bursts.extend(row.bursts)
            known.times.extend(row.times)
            click.echo(f"round {number + 1}, {row.who}: {row.rate:.1f} pods/s", err=True)
    return [*rows.values()]


def _rows(site: Site, load: Load, wanted: set[str]) -> Iterator[Row]:
    if CONTROLLER in wanted:
        with site.installed():
            yield _measured(CONTROLLER, site, load)
    if BEFORE in wanted:
        yield _measured(BEFORE, site, load, made=site.allocate)
    if STEERED in wanted:
        with site.scheduler(), site.controller(allocator=AllocatorKind.SCHEDULER):
            yield _measured(STEERED, site, load, gate=finalizer(DEFAULT_DRIVER))
    if SCHEDULER in wanted:
        with site.scheduler():
            yield _measured(SCHEDULER, site, load)


def _measured(
    who: str,
    site: Site,
    load: Load,
    *,
    made: Callable[[str], object] = lambda _: None,
    gate: str = "",
) -> Row:
    with Bindings(site, load, made=made, gate=gate) as bindings:
        bindings.burst(WARM_UP_PODS, limit_seconds=WARM_UP_SECONDS)
        bindings.clear()
        times = bindings.singly(load.single, limit_seconds=SECONDS)
        bindings.clear()
        burst = bindings.burst(load.pods, limit_seconds=SECONDS)
    return Row(who, [burst], times)


def _text(row: Row, load: Load, slowest: float) -> str:
    rate, times = row.rate, [1000 * t for t in row.times]
    cuts = quantiles(times, n=10) if len(times) > 1 else times * 9 or [float("nan")] * 9
    ratio, cpu_ms = (
        rate / slowest if slowest else float("nan"),
        1000 * sum(row.cpu.values()) / row.pods,
    )
    mib = max(burst.mib for burst in row.bursts)
    figures = (rate, ratio, cuts[4], cuts[8], row.cores, cpu_ms, mib)
    return f"{row.who:<18}{load.nodes:>10}{load.qps:>10}{row.bound:>10}" + "".join(
        f"{figure:>10.1f}" for figure in figures
    )


def details(row: Row) -> str:
    """Moments of bursts, and CPU milliseconds a pod by process."""
    each = {name: 1000 * seconds / row.pods for name, seconds in row.cpu.items()}
    largest = sorted(each.items(), key=lambda item: -item[1])
    cpu = ", ".join(f"{name} {ms:.2f}" for name, ms in largest if ms >= LEAST)
    bound = "; ".join(_moments(burst) for burst in row.bursts if burst.moments)
    sent = sum(burst.as_nominated for burst in row.bursts)
    told = f"; {sent} on the nominated node" if sent else ""
    return f"{row.who}: bound {bound}{told}\n{row.who}, a pod: CPU ms {cpu}"


def _moments(burst: Burst) -> str:
    """Seconds after which half, nine tenths, all but one in fifty and all were bound.

    Then how long after each was asked for.
    """
    told = (
        " / ".join(f"{found[int(share * (len(found) - 1))]:.2f}" for share in (0.5, 0.9, 0.98, 1.0))
        for found in (burst.moments, burst.waits)
    )
    return "after " + " s, each after ".join(told) + " s"


if __name__ == "__main__":
    main()
