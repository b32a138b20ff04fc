"""Devices of other drivers, and the nodes on which they could serve a pod's other claims.

kube-scheduler allocates them once ours are written, and takes ours back where it cannot: nodes
where it is certain to do so are ruled out before. Constraints, DeviceTaintRules, counters and
capacities of such devices are not looked at. Nothing is known of slices that are too large to be
kept, nor of selectors that fail. A node is rather tried in vain than left out.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from dra.claims.allocation import Allocation
from dra.claims.claims import Claim, Request
from dra.claims.classes import DeviceClass
from dra.common.cache import BoundedCache
from dra.common.resources import BLOCKING_EFFECTS, Obj, tolerates

MOST_BYTES = 64 * 2**20
"""Memory for devices of other drivers; of slices beyond that only the node is known."""

_ANYWHERE = ""
"""Stands for a node's name: the device can be used on several nodes, maybe on all."""

_OVERHEAD = 400
"""Bytes of a device besides its description, roughly."""

_COUNTED = 64
"""Most different wants (``_Wanted``) for which free devices are kept counted."""

Expressions = tuple[str, ...]
Selected = Callable[[Expressions, Collection[str]], Collection[str] | None]
"""Returns those of the descriptions that all expressions select; None if that is not known."""

_DeviceId = tuple[str, str, str]

_Kind = tuple[str, str]
"""Description of a device, and its taints that keep claims away, as JSON; empty without any."""


def trim_slice(obj: Obj) -> Obj:
    """The part of a ResourceSlice (resource.k8s.io/v1) that is read.

    ``is`` describes a device, equal for all that no selector can tell apart; ``taints`` are those
    that keep claims away. The pool's generation, which grows with each change of any of its slices,
    is left out: slices of an older one go soon.
    """
    spec = obj["spec"]
    driver = spec["driver"]
    node = spec.get("nodeName") or _ANYWHERE
    devices = [
        {
            "name": sys.intern(device["name"]),
            "node": device.get("nodeName") or node,
            "is": sys.intern(_description(driver, device)),
            "taints": sys.intern(_taints(device)),
        }
        for device in spec.get("devices") or ()
    ]
    kept = {
        "driver": sys.intern(driver),
        "nodeName": node,
        "pool": {"name": sys.intern(spec["pool"]["name"])},
        "devices": devices,
    }
    return {"metadata": {"name": obj["metadata"]["name"]}, "spec": kept}


def _description(driver: str, device: Obj) -> str:
    """All of a device that a selector can look at, as ``dra.cel.strangers`` reads it."""
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    parts = driver, attributes, capacity, bool(device.get("allowMultipleAllocations"))
    return msgspec.json.encode(parts, order="sorted").decode()


def _taints(device: Obj) -> str:
    """Taints as JSON, without the times at which they were added, in which devices differ."""
    found = [
        {"key": taint["key"], "value": taint.get("value", ""), "effect": taint["effect"]}
        for taint in device.get("taints") or ()
        if taint["effect"] in BLOCKING_EFFECTS
    ]
    return msgspec.json.encode(found).decode() if found else ""


@dataclass(frozen=True, slots=True)
class _Slice:
    """A ResourceSlice. ``devices``: node and kind by name; None if they are too many to be kept."""

    pool: tuple[str, str]
    node: str
    devices: Mapping[str, tuple[str, _Kind]] | None
    weight: int


class _Wanted(NamedTuple):
    """Devices that a request may have. ``tolerations`` are JSON."""

    expressions: Expressions
    tolerations: str


@dataclass(frozen=True, slots=True)
class _Suiting:
    """Kinds of devices that a request may have, and the number of free ones by node.

    ``published``: there are devices that its selectors select, though all of them may be tainted.
    """

    kinds: frozenset[_Kind]
    free: Counter[str]
    published: bool


class OtherDevices:
    """Devices in the ResourceSlices of other drivers than ``driver``, and who has them.

    Not thread-safe.
    """

    def __init__(self, driver: str) -> None:
        self._driver = driver
        self._slices: dict[str, _Slice] = {}
        self._weight = 0
        self._held: Counter[_DeviceId] = Counter()
        self._current = False
        self._at: dict[_DeviceId, tuple[str, _Kind]] = {}
        self._free: dict[_Kind, Counter[str]] = {}
        self._suiting: BoundedCache[_Wanted, _Suiting] = BoundedCache(_COUNTED)
        self._unknown: frozenset[str] = frozenset()

    def set_slice(self, obj: Obj) -> None:
        """Take a slice that was added or changed, as ``trim_slice`` leaves it."""
        name, spec = obj["metadata"]["name"], obj["spec"]
        self.remove_slice(name)
        devices = {d["name"]: (d["node"], (d["is"], d["taints"])) for d in spec["devices"]}
        weight = sum(_OVERHEAD + sum(map(len, kind)) for _, kind in devices.values())
        fits = self._weight + weight <= MOST_BYTES
        self._slices[name] = _Slice(
            (spec["driver"], spec["pool"]["name"]),
            spec["nodeName"],
            devices if fits else None,
            weight if fits else 0,
        )
        self._weight += self._slices[name].weight

    def remove_slice(self, name: str) -> None:
        """Forget a slice."""
        gone = self._slices.pop(name, None)
        self._weight -= gone.weight if gone is not None else 0
        self._current = False

    def exchange(self, before: Allocation | None, after: Allocation | None) -> bool:
        """A claim has ``after`` instead of ``before`` now; returns True if a device became free."""
        for device in self._ids(after):
            self._held[device] += 1
            if self._held[device] == 1:
                self._count(device, -1)
        freed = False
        for device in self._ids(before):
            self._held[device] -= 1
            if not self._held[device]:
                del self._held[device]
                self._count(device, 1)
                freed = True
        return freed

    def nodes_for(
        self,
        claims: Iterable[Claim],
        classes: Mapping[str, DeviceClass],
        selected: Selected,
        nodes: Collection[str],
        *,
        awaited: Iterable[tuple[str, Sequence[Claim]]] = (),
    ) -> Collection[str] | None:
        """Those of ``nodes`` where each claim could be served; None where that cannot be told.

        ``awaited`` are nodes and claims that are about to be served there.
        """
        left = set(nodes)
        taken: dict[_Wanted, Counter[str]] = {}
        for node, their in awaited:
            for choice in (r.choices[0] for claim in their for r in claim.requests):
                if choice.class_name in classes:
                    wanted = _wanted(choice, classes)
                    taken.setdefault(wanted, Counter())[node] += choice.count
        for claim in claims:
            for request in claim.requests:
                found = self._nodes_of(request, classes, selected, left, taken)
                if found is None:
                    return None
                left &= found
        return left

    def _nodes_of(
        self,
        request: Request,
        classes: Mapping[str, DeviceClass],
        selected: Selected,
        nodes: Collection[str],
        taken: Mapping[_Wanted, Counter[str]],
    ) -> set[str] | None:
        found: set[str] = set()
        is_known = False
        for choice in request.choices:
            if choice.class_name not in classes or choice.unsupported:
                return None
            self._look()
            if _ANYWHERE in self._unknown:
                return None
            wanted = _wanted(choice, classes)
            suiting = self._suiting_of(wanted, selected)
            if suiting is None:
                return None
            if choice.admin_access:
                return {*nodes}
            is_known = is_known or suiting.published
            free, gone = suiting.free, taken.get(wanted, Counter[str]())
            needed = choice.count - free[_ANYWHERE]
            lacking = {n for n in gone if free[n] - gone[n] < needed}
            found |= {n for n in nodes if free[n] >= needed} - lacking | self._unknown
        # Slices may not be shown to us, or not be there yet.
        return found if is_known else None

    def _suiting_of(self, wanted: _Wanted, selected: Selected) -> _Suiting | None:
        known = self._suiting.find(wanted)
        if known is None:
            found = selected(wanted.expressions, {text for text, _ in self._free})
            if found is None:
                return None
            texts, tolerations = {*found}, msgspec.json.decode(wanted.tolerations)
            kinds = frozenset(
                (text, taints)
                for text, taints in self._free
                if text in texts and _tolerated(taints, tolerations)
            )
            known = _Suiting(kinds, Counter(), published=bool(texts))
            for kind in kinds:
                known.free.update(self._free[kind])
            self._suiting.put(wanted, known)
        return known

    def _ids(self, allocation: Allocation | None) -> Iterator[_DeviceId]:
        """Devices of other drivers in ``allocation`` that no other claim can have meanwhile."""
        for device in allocation.devices if allocation is not None else ():
            if device.driver != self._driver and not device.admin_access and not device.share_id:
                yield device.driver, device.pool, device.device

    def _count(self, device: _DeviceId, change: int) -> None:
        if self._current and device in self._at:
            node, kind = self._at[device]
            self._free[kind][node] += change
            for suiting in self._suiting.values():
                if kind in suiting.kinds:
                    suiting.free[node] += change

    def _look(self) -> None:
        """Index the devices of all slices, if any slice has changed since."""
        if self._current:
            return
        slices = self._slices.values()
        self._unknown = frozenset(s.node for s in slices if s.devices is None)
        self._at = {(*s.pool, n): at for s in slices for n, at in (s.devices or {}).items()}
        self._free = {}
        for device, (node, kind) in self._at.items():
            self._free.setdefault(kind, Counter())[node] += device not in self._held
        self._suiting.clear()
        self._current = True


def _wanted(choice: Request, classes: Mapping[str, DeviceClass]) -> _Wanted:
    expressions = (*classes[choice.class_name].selectors, *choice.selectors)
    return _Wanted(expressions, msgspec.json.encode(choice.tolerations).decode())


def _tolerated(taints: str, tolerations: Sequence[Obj]) -> bool:
    return not taints or all(tolerates(tolerations, taint) for taint in msgspec.json.decode(taints))
