"""ResourceSlices (resource.k8s.io/v1) of a node's devices: how they are split, named and written.

From Kubernetes 1.35 on counter sets are in slices of their own and may be used from every slice of
the pool; in 1.34 they stand beside the devices that use them. kube-scheduler reads the slices of a
pool by object name and the devices in list order. Limits are those of the API's types.go.

Counters (KEP-4815) are those of the parts of a GPU that devices share: one set per GPU, with one
counter per memory slice. Names are those of NVIDIA's DRA driver with hyphens, since a counter's
name is a DNS label. Together the counters say exactly what ``Geometry.fits`` says: devices that fit
beside each other are those whose counters suffice.

Consumable capacity (KEP-5075) is that of devices that several claims may have. A capacity without a
request policy is consumed whole by a claim that does not ask for some of it: so each capacity has a
policy. kube-scheduler knows no namespaces: the node refuses a claim of another one. A server
without consumable capacity drops the fields, and the device is given to one claim at a time. The
counters of a slice are consumed once, however many claims have it: kube-scheduler leaves them out
where some capacity of a device is in use, and takes them off by device, not by claim (1.36,
``allocateDevice`` and ``checkAvailableCounters`` in the allocators incubating and experimental).
Within one attempt it does not give back the counters of a share that it has tried in vain: it may
miss room for a claim of several devices, but never finds room that is not there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from typing import Any, TypeVar

from dra.claims.conditions import binding_fields
from dra.common.quantity import mebibytes
from dra.gpu.devices import gpu_attributes, gpu_capacity, slice_attributes, slice_capacity
from dra.gpu.geometry import Counts, Geometry, Occupant, Placement, Profile
from dra.gpu.inventory import Gpu, Inventory
from dra.gpu.names import counter_set_name
from dra.resourceslices.partitions import Offered, Partition

Counters = dict[str, Any]
"""``{name: {"value": quantity}}``."""

_MEMORY_COUNTER = "memory"
_COMPUTE_SLICES = "compute-slices"
_COUNTS = tuple(field.replace("_", "-") for field in Counts._fields)


def _count(index: int, profile: Profile) -> int:
    return profile.counts[index]


_AMOUNTS: Mapping[str, Callable[[Profile], int]] = {
    _MEMORY_COUNTER: lambda p: p.memory_mib,
    "multiprocessors": lambda p: p.multiprocessors,
    **{name: partial(_count, index) for index, name in enumerate(_COUNTS)},
}


class CounterModel:
    """The counters of GPUs of one geometry.

    Memory and multiprocessors are counted for readers only: their totals are the most that
    instances beside each other have, so that memory slices always run out first. Compute slices are
    counted only where they may run out before memory slices.
    """

    def __init__(self, geometry: Geometry) -> None:
        self._geometry = geometry
        self._totals = {n: t for n, t in _totals(geometry).items() if t}

    def shared(self, occupants: Iterable[Occupant] = ()) -> Counters:
        """The counters of a GPU, less those of ``occupants``, which no claim accounts for."""
        taken = [*occupants]
        profiles = [p for o in taken if (p := self._profile(o)) is not None]
        counters: Counters = {}
        for name, total in self._totals.items():
            left = total - sum(map(_AMOUNTS[name], profiles))
            counters[name] = _value(name, max(0, left))
        free = ~self._geometry.usage(taken).mask
        for index in range(self._geometry.memory_slices):
            counters[_memory_slice(index)] = {"value": str(free >> index & 1)}
        return counters

    def consumed(self, profile: Profile, placement: Placement) -> Counters:
        """Counters that an instance of ``profile`` at ``placement`` takes, with amounts above 0."""
        amounts = {name: _AMOUNTS[name](profile) for name in self._totals}
        counters: Counters = {n: _value(n, amount) for n, amount in amounts.items() if amount}
        for index in range(placement.start, placement.start + placement.size):
            counters[_memory_slice(index)] = {"value": "1"}
        return counters

    def _profile(self, occupant: Occupant) -> Profile | None:
        return None if occupant.profile_id is None else self._geometry.by_id(occupant.profile_id)


def _model(gpu: Gpu) -> CounterModel:
    """The counters of a GPU in MIG mode."""
    return _model_of(gpu.geometry or Geometry(()))


@lru_cache(maxsize=16)
def _model_of(geometry: Geometry) -> CounterModel:
    return CounterModel(geometry)


def _totals(geometry: Geometry) -> dict[str, int]:
    most = {name: _most(geometry, amount) for name, amount in _AMOUNTS.items()}
    totals = most | dict(zip(_COUNTS, geometry.totals, strict=True))
    if most[_COMPUTE_SLICES] <= geometry.compute_slices:
        del totals[_COMPUTE_SLICES]
    return totals


def _most(geometry: Geometry, amount: Callable[[Profile], int]) -> int:
    """The greatest sum of ``amount`` over instances whose memory slices do not overlap."""
    best = [0]
    for end in range(1, geometry.memory_slices + 1):
        last = (
            best[q.start] + amount(p)
            for p in geometry.profiles
            for q in p.placements
            if q.start + q.size == end
        )
        best.append(max([best[-1], *last]))
    return best[-1]


def _value(name: str, amount: int) -> dict[str, str]:
    return {"value": mebibytes(amount) if name == _MEMORY_COUNTER else str(amount)}


def _memory_slice(index: int) -> str:
    return f"memory-slice-{index}"


_NONE_NEEDED = {"default": "0", "validRange": {"min": "0"}}


def shared_fields(capacity: Mapping[str, Any], memory_mib: int, shares: int) -> dict[str, Any]:
    """Fields of a ResourceSlice's device that several claims may have.

    They are ``capacity`` with a request policy for each entry, and the permission to allocate the
    device several times. ``memory_mib`` is the device's memory.
    """
    default = mebibytes(memory_mib // shares)
    policies = {
        "memory": {"default": default, "validRange": {"min": "1Mi", "step": "1Mi"}},
        "cores": {"default": "0", "validRange": {"min": "0", "step": "1"}},
        "shares": {"default": "1", "validValues": ["1"]},
    }
    consumed = {
        name: {**value, "requestPolicy": policies.get(name, _NONE_NEEDED)}
        for name, value in capacity.items()
    }
    return {"allowMultipleAllocations": True, "capacity": consumed}


T = TypeVar("T")
Spec = dict[str, Any]

MAX_COUNTER_SETS = 8
MAX_DEVICES = 128
MAX_DEVICES_WITH_FEATURES = 64
"""Limit on the devices of a slice where one has taints or consumes counters."""

_MAX_VALUE = 64
_MAX_TAINT_VALUE = 63
_MAX_NAME = 253


@dataclass(frozen=True, slots=True)
class Features:
    """Features of ResourceSlices that the API server supports and that are to be used.

    ``separate``: counter sets in slices of their own. ``taints``: taints of devices. ``binding``:
    conditions without which kube-scheduler binds no pod. ``shares``: slices that may be allocated
    several times.
    """

    separate: bool = True
    taints: bool = True
    binding: bool = False
    shares: bool = True


@dataclass(frozen=True, slots=True)
class SliceContent:
    """Content of one ResourceSlice: devices, and GPUs whose counter sets it has."""

    counters_of: tuple[Gpu, ...] = ()
    partitions: tuple[Partition, ...] = ()


class SliceLayout:
    """The ResourceSlices of one pool. Their specs are made one at a time, as they are large."""

    def __init__(self, offered: Offered, features: Features) -> None:
        self._offered = offered
        self._features = features
        self.contents = tuple(_split(offered, features))

    def __len__(self) -> int:
        return len(self.contents)

    def names(self) -> list[str]:
        """Object names in the order of the slices."""
        inventory = self._offered.inventory
        return [
            object_name(index, driver=inventory.driver, node=inventory.node)
            for index in range(len(self))
        ]

    def spec(self, index: int, *, generation: int) -> Spec:
        """``spec`` of a slice in a pool of that generation."""
        content, inventory = self.contents[index], self._offered.inventory
        pool = {
            "name": inventory.pool,
            "generation": generation,
            "resourceSliceCount": len(self),
        }
        spec: Spec = {"driver": inventory.driver, "nodeName": inventory.node, "pool": pool}
        if content.counters_of:
            spec["sharedCounters"] = [self._counter_set(g) for g in content.counters_of]
        if content.partitions:
            spec["devices"] = [self._device(p, inventory) for p in content.partitions]
        return spec

    def _counter_set(self, gpu: Gpu) -> Spec:
        occupants = self._offered.blocked.get(gpu.uuid, ())
        return {
            "name": counter_set_name(gpu.minor),
            "counters": _model(gpu).shared(occupants),
        }

    def _device(self, partition: Partition, inventory: Inventory) -> Spec:
        gpu, profile, placement = partition.gpu, partition.profile, partition.placement
        device: Spec = {"name": partition.name}
        if profile is None or placement is None:
            device["attributes"] = _cut(gpu_attributes(gpu, inventory))
            device["capacity"] = gpu_capacity(gpu)
            if gpu.shares:
                device |= shared_fields(device["capacity"], gpu.memory_mib, gpu.shares)
        else:
            shares = gpu.slice_shares if partition.shared else 0
            attributes = slice_attributes(gpu, profile, inventory, shares=shares)
            device["attributes"] = _cut(attributes)
            device["capacity"] = slice_capacity(profile, shares)
            if shares:
                device |= shared_fields(device["capacity"], profile.memory_mib, shares)
            device["consumesCounters"] = [
                {
                    "counterSet": counter_set_name(gpu.minor),
                    "counters": _model(gpu).consumed(profile, placement),
                }
            ]
        if partition.made_first and self._features.binding:
            device |= binding_fields()
        if partition.trouble and self._features.taints:
            device["taints"] = [
                {
                    "key": taint_key(inventory.driver),
                    "value": partition.trouble[:_MAX_TAINT_VALUE],
                    "effect": "NoSchedule",
                }
            ]
        return device


def taint_key(driver: str) -> str:
    """The key of taints on devices that are not to be allocated; the value says why in a word."""
    return f"{driver}/unavailable"


def object_name(index: int, *, driver: str, node: str) -> str:
    """The name of a slice, which sorts as its index; a name that is too long ends in a digest."""
    name = f"{index:04}-{driver}-{node}"
    if len(name) > _MAX_NAME:
        digest = hashlib.sha256(name.encode()).hexdigest()[:16]
        name = f"{name[: _MAX_NAME - 1 - len(digest)].rstrip('.-')}-{digest}"
    return name


def is_own_name(name: str, *, driver: str, node: str) -> bool:
    """True if ``name`` is one that we give a slice; other plugins of ``driver`` give others."""
    index = name.partition("-")[0]
    return index.isdecimal() and name == object_name(int(index), driver=driver, node=node)


def _split(offered: Offered, features: Features) -> Iterator[SliceContent]:
    partitions = offered.partitions
    if features.separate:
        for gpus in _chunks(offered.sliced, MAX_COUNTER_SETS):
            yield SliceContent(counters_of=gpus)
    else:
        for gpu in offered.sliced:
            yield SliceContent((gpu,), tuple(p for p in partitions if p.gpu is gpu))
        partitions = tuple(p for p in partitions if p.profile is None)
    featured = any(p.profile is not None or p.trouble for p in partitions)
    most = MAX_DEVICES_WITH_FEATURES if featured else MAX_DEVICES
    for chunk in _chunks(partitions, most):
        yield SliceContent(partitions=chunk)
    if not offered.partitions and not offered.sliced:
        yield SliceContent()  # an empty slice shows that the driver is there


def _chunks(items: Sequence[T], size: int) -> Iterator[tuple[T, ...]]:
    rest = iter(items)
    while chunk := tuple(islice(rest, size)):
        yield chunk


def _cut(attributes: Spec) -> Spec:
    """``attributes`` with strings cut to the length that the API allows."""
    return {
        name: {k: v[:_MAX_VALUE] if isinstance(v, str) else v for k, v in value.items()}
        for name, value in attributes.items()
    }
