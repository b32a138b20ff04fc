"""Metrics of the controller's work for Prometheus."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from dra.allocator.fleet import Fleet
from dra.allocator.fragmentation import ProductRoom, rooms
from dra.claims.classes import DEVICES
from dra.claims.reasons import Reason
from dra.common.resources import Obj
from dra.kube.timing import seconds_since
from dra.monitoring import WHOLE_GPU
from dra.monitoring.metrics import Meters, family

_DECISION_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
_LATENCY_SECONDS = (0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 300, 900, 3600)


_PRODUCTS, _PROFILES, _NAMESPACES = 32, 48, 500
"""Upper bounds on series: products, profiles of each product, and namespaces with a quota.

The largest ones are kept.
"""

_MIB = 2**20

_ROOM_MAKING = (Reason.MOVED, Reason.PREEMPTED, Reason.ROOM_NOT_MADE)
"""Steps of making room for a pod that are counted."""

WaitingClaims = Callable[[], Iterable[tuple[str, Reason, str]]]
"""Gives UID, reason and creation time of each claim that waits, once for each of its pods."""


class ControllerMetrics(Collector):
    """The controller's metrics. ``leads`` gives True while this controller leads.

    The deciding thread calls the methods, so that none may block or raise. Claims are objects as
    JSON.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        leads: Callable[[], bool],
        now: Callable[[], datetime],
    ) -> None:
        self._now = now
        meters = Meters(registry)
        self._decisions = meters.histogram(
            "decision_duration_seconds",
            "Time to decide where the claims of one pod go; outcome is placed or none.",
            _DECISION_SECONDS,
            "outcome",
        )
        self._latency = meters.histogram(
            "claim_allocated_seconds",
            "From the creation of a claim, which has whole seconds, to its allocation.",
            _LATENCY_SECONDS,
        )
        self._devices = meters.counter(
            "allocated_devices_total", "Devices that were allocated.", "profile"
        )
        leader = meters.gauge("leader", "1 while this controller allocates, 0 otherwise.")
        leader.set_function(lambda: float(leads()))
        self._unreadable = meters.gauge(
            "unreadable_mignodes",
            "Nodes on which nothing is allocated, as their MigNodes cannot be read.",
        )
        room_making = meters.counter(
            "room_making_total",
            "Pods that were moved or ended so that another has room, and how often that stopped.",
            "reason",
        )
        self._steered = meters.counter(
            "steered_pods_total",
            "Pods that were sent to kube-scheduler, by what it did: nominated, elsewhere, refused.",
            "outcome",
        )
        self._room_making = {r: room_making.labels(r.value) for r in _ROOM_MAKING}
        self._waits: WaitingClaims = tuple
        self._fleet: Fleet | None = None
        registry.register(self)

    def decided(self, seconds: float, *, placed: bool) -> None:
        """Count a decision about a pod's claims that took ``seconds``; ``placed``: they fit."""
        self._decisions.labels("placed" if placed else "none").observe(seconds)

    def allocated(self, claim: Obj, profiles: Iterable[str]) -> None:
        """Count an allocated claim; ``profiles``: those of its devices, "" for a whole GPU."""
        seconds = seconds_since(claim["metadata"].get("creationTimestamp", ""), self._now())
        if seconds is not None:
            self._latency.observe(seconds)
        for profile in profiles:
            self._devices.labels(profile or WHOLE_GPU).inc()

    def steered(self, outcome: str) -> None:
        """Count a pod that was sent to kube-scheduler."""
        self._steered.labels(outcome).inc()

    def room_making(self, step: Reason) -> None:
        """Count a step of making room: a pod was moved or ended, or it was stopped."""
        if step in self._room_making:
            self._room_making[step].inc()

    def unreadable(self, mignodes: int) -> None:
        self._unreadable.set(mignodes)

    def begins(self, waits: WaitingClaims = tuple, fleet: Fleet | None = None) -> None:
        """Take the sources of a leadership that begins; without arguments, it has ended.

        ``waits`` is called, and ``fleet`` is read, by any thread.
        """
        self._waits, self._fleet = waits, fleet
        self._unreadable.set(0)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Metrics that are computed when Prometheus asks for them."""
        yield from self._waiting()
        yield from _room(self._fleet)
        yield from _quotas(self._fleet)

    def _waiting(self) -> list[GaugeMetricFamily]:
        now = self._now()
        ages: dict[Reason, list[float]] = defaultdict(list)
        for reason, created in {uid: (reason, at) for uid, reason, at in self._waits()}.values():
            ages[reason].append(seconds_since(created, now) or 0.0)
        found = [([reason.value], each) for reason, each in sorted(ages.items())]
        text, labels = "Claims that wait for an allocation.", ["reason"]
        oldest = "Age of the oldest claim that waits."
        return [
            family("waiting_claims", text, labels, ((r, len(each)) for r, each in found)),
            family("waiting_claim_oldest_seconds", oldest, labels, ((r, max(e)) for r, e in found)),
        ]


def _room(fleet: Fleet | None) -> list[GaugeMetricFamily]:
    """Fragmentation of the GPUs that the controller allocates."""
    slices = family("memory_slices", "Memory slices of GPUs in MIG mode.", ["product", "state"])
    of_product = ["product"]
    text = "Free ones where what is asked for does not fit."
    stranded = family("stranded_memory_slices", text, of_product)
    text = "Those of the largest slice to be had."
    largest = family("largest_placeable_memory_slices", text, of_product)
    text = "Most slices of the profile alone."
    placeable = family("placeable_slices", text, ["product", "profile"])
    found = rooms(fleet) if fleet is not None else {}
    for product, room in sorted(found.items(), key=_number_of_slices)[:_PRODUCTS]:
        for state in ("held", "free", "withheld"):
            slices.add_metric([product, state], getattr(room, state))
        stranded.add_metric([product], room.stranded)
        largest.add_metric([product], room.largest)
        for profile, number in room.placeable.most_common(_PROFILES):
            placeable.add_metric([product, profile], number)
    return [slices, stranded, largest, placeable]


def _quotas(fleet: Fleet | None) -> list[GaugeMetricFamily]:
    """Quotas of classes, and what namespaces hold of these."""
    of_class, of_namespace = ("device_class",), ("namespace", "device_class")
    devices = family("quota_devices", "Devices that a namespace may hold.", of_class)
    memory = family("quota_memory_bytes", "Memory that it may hold.", of_class)
    held = family("quota_held_devices", "Devices that it holds.", of_namespace)
    held_memory = family("quota_held_memory_bytes", "Memory that it holds.", of_namespace)
    if fleet is not None:
        for name, quota in sorted([*fleet.quotas.limits.items()]):
            if quota.devices is not None:
                devices.add_metric([name], quota.devices)
            if quota.memory_mib is not None:
                memory.add_metric([name], quota.memory_mib * _MIB)
        sums = sorted(fleet.quotas.sums(), key=lambda each: -each[-1])
        for namespace, name, what, number in sums[: 2 * _NAMESPACES]:
            of = held if what == DEVICES else held_memory
            of.add_metric([namespace, name], number * (1 if what == DEVICES else _MIB))
    return [devices, memory, held, held_memory]


def _number_of_slices(of_product: tuple[str, ProductRoom]) -> int:
    room = of_product[1]
    return -(room.held + room.free + room.withheld)
