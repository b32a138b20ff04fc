"""Small states and claims at random, and by trying everything which of them can be served.

What a device is, and which exclude each other, is said here once more, in other words than the
product's: a device is a whole GPU or a slice at one placement.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from dra.allocator.problem import Pick
from dra.claims.allocation import MAX_RESULTS
from dra.common.resources import Obj
from dra.gpu.geometry import Engines, Geometry, Placement, Profile
from dra.gpu.inventory import Gpu, Instance, InstanceState
from tests.controller.helpers.objects import claim, first_available, gpu, request
from tests.dra.gpus import A100

PARENT, PROFILE = "mig.dra.dev/parentUUID", "mig.dra.dev/profile"
ROOT = "resource.kubernetes.io/pcieRoot"
_OWN = "device.attributes['mig.dra.dev']"


@dataclass(frozen=True)
class Device:
    """A whole GPU, or a slice of it at one place."""

    gpu: Gpu
    profile: Profile | None = None
    placement: Placement | None = None

    def value(self, attribute: str) -> str | None:
        """The value of an attribute that constraints are about; None where it has none."""
        if attribute == ROOT:
            return self.gpu.pcie_root or None
        if self.profile is None:
            return None
        return self.gpu.uuid if attribute == PARENT else self.profile.name


Selects = Callable[[Device], bool]


@dataclass(frozen=True)
class Asked:
    """One alternative of a request: what it is called, and how many of which devices."""

    name: str
    selects: Selects
    count: int = 1
    everything: bool = False


@dataclass(frozen=True)
class Constraint:
    """An attribute that the devices of some requests have in common, or that tells them apart."""

    attribute: str
    requests: frozenset[str]
    distinct: bool


@dataclass
class AskedClaim:
    """A claim as an object, and the same as predicates; ``choices`` are per request."""

    body: Obj
    choices: list[list[Asked]] = field(default_factory=list)
    constraints: list[Constraint] = field(default_factory=list)


def _profile(name: str) -> Selects:
    return lambda device: device.profile is not None and device.profile.name == name


def _at_least(gib: int) -> Selects:
    # Profiles have up to 5 % less than the size in their names.
    return lambda d: d.profile is not None and d.profile.memory_mib >= gib * 1024 * 0.95


def _whole(device: Device) -> bool:
    return device.profile is None


def _slice(device: Device) -> bool:
    return device.profile is not None


_WORDS: list[tuple[str, str, Selects]] = [
    *((f"mig-{p.name.replace('+', '.')}", "", _profile(p.name)) for p in A100.profiles),
    *((f"mig-min-{n}gb", "", _at_least(n)) for n in (5, 10, 20, 40)),
    ("mig.dra.dev", "", _slice),
    ("gpu.dra.dev", "", _whole),
    (
        "mig.dra.dev",
        f"{_OWN}.profile.startsWith('1g')",
        lambda d: d.profile is not None and d.profile.name.startswith("1g"),
    ),
    (
        "mig.dra.dev",
        f"{_OWN}.profile.contains('g.20gb')",
        lambda d: d.profile is not None and "g.20gb" in d.profile.name,
    ),
    (
        "mig.dra.dev",
        f"{_OWN}.parentUUID.endsWith('-0')",
        lambda d: d.profile is not None and d.gpu.minor == 0,
    ),
    (
        "mig-1g.5gb",
        f"{_OWN}.parentUUID.endsWith('-1')",
        lambda d: d.profile is not None and d.profile.name == "1g.5gb" and d.gpu.minor == 1,
    ),
]
"""Classes with a selector, and what they select."""

WORDS = [*_WORDS, *_WORDS[:3], *_WORDS[7:10], *_WORDS[11:]]
"""The same; what is small comes oftener."""


def random_gpus(draw: random.Random, node: str) -> tuple[Gpu, ...]:
    """One to three GPUs, with and without MIG mode, partly in use by instances of others."""
    return tuple(_random_gpu(draw, minor, node) for minor in range(draw.choice((1, 1, 2, 2, 3))))


def _random_gpu(draw: random.Random, minor: int, node: str) -> Gpu:
    root = f"pci0000:{minor // 2:02x}"
    if draw.random() < 0.15:
        return gpu(minor, node, mig=False, pcie_root=root)
    usage, instances = A100.usage([]), list[Instance]()
    for _ in range(draw.choice((0, 0, 0, 1, 2, 3))):
        profile = draw.choice(A100.profiles)
        free = A100.free_placements(usage, profile)
        if free:
            found = Instance(draw.choice(free), InstanceState.FOREIGN, profile_id=profile.id)
            instances.append(found)
            usage = A100.usage(i.occupant for i in instances)
    return gpu(minor, node, instances=tuple(instances), pcie_root=root)


def random_claims(draw: random.Random) -> list[AskedClaim]:
    """The claims of a pod: mostly one, of one to three requests."""
    return [random_claim(draw, f"c{n}") for n in range(draw.choice((1, 1, 1, 2)))]


def random_claim(draw: random.Random, name: str) -> AskedClaim:
    """A claim, and the same as predicates."""
    found, requests = AskedClaim({}), list[Obj]()
    for number in range(draw.choice((1, 2, 2, 3))):
        called = f"r{number}"
        if draw.random() < 0.2:
            parts, alternatives = [], []
            for rank in range(draw.choice((2, 3))):
                body, asked = _random_request(draw, f"{called}/s{rank}")
                parts.append((f"s{rank}", body.pop("deviceClassName"), body))
                alternatives.append(asked)
            requests.append(first_available(called, *parts))
            found.choices.append(alternatives)
        else:
            body, asked = _random_request(draw, called)
            requests.append({"name": called, "exactly": body})
            found.choices.append([asked])
    constraints = []
    for _ in range(draw.choice((0, 0, 0, 0, 1, 1, 2))):
        named = [r["name"] for r in requests]
        some = draw.sample(named, draw.randint(1, len(named))) if draw.random() < 0.4 else named
        kind = draw.choice(("matchAttribute", "matchAttribute", "distinctAttribute"))
        attribute = draw.choice((PARENT, PARENT, PROFILE, ROOT))
        constraints.append({kind: attribute, "requests": some})
        bound = Constraint(attribute, frozenset(some), kind == "distinctAttribute")
        found.constraints.append(bound)
    found.body = claim(name, *requests, constraints=constraints)
    return found


def _random_request(draw: random.Random, name: str) -> tuple[Obj, Asked]:
    device_class, selector, selects = draw.choice(WORDS)
    count = draw.choice((1, 1, 1, 1, 2, 2, 3))
    everything = draw.random() < 0.06
    more: Obj = {"allocationMode": "All"} if everything else {"count": count}
    body: Obj = request("", device_class, *([selector] if selector else []), **more)["exactly"]
    return body, Asked(name, selects, count, everything)


def choices_of(claims: Sequence[AskedClaim]) -> list[list[list[Asked]]]:
    """By claim, one alternative for every request; the best first, as kube-scheduler compares."""
    every = [alternatives for c in claims for alternatives in c.choices]
    ranked = sorted(
        itertools.product(*(range(len(a)) for a in every)), key=lambda ranks: (sum(ranks), ranks)
    )
    found = []
    for ranks in ranked:
        rest = iter(ranks)
        found.append([[a[next(rest)] for a in c.choices] for c in claims])
    return found


def serves(gpus: Sequence[Gpu], claims: Sequence[AskedClaim], chosen: list[list[Asked]]) -> bool:
    """True if some set of devices of a node serves all requests, found by trying."""
    if len(claims) > 1 and not all(
        serves(gpus, [alone], [asked]) for alone, asked in zip(claims, chosen, strict=True)
    ):
        return False
    devices = [d for g in gpus for d in _devices(g)]
    places: list[tuple[int, Asked, Sequence[Device]]] = []
    for number, requests in enumerate(chosen):
        most = 0
        for asked in requests:
            suits = [d for d in devices if asked.selects(d)]
            if not suits:
                return False
            each = [(number, asked, [d]) for d in suits] if asked.everything else []
            each = each or [(number, asked, suits)] * asked.count
            places += each
            most += len(each)
        if most > MAX_RESULTS:
            return False
    places.sort(key=lambda place: len(place[2]))
    uuids = {g.uuid: n for n, g in enumerate(gpus)}
    failed: set[object] = set()
    start = tuple(_Left.of(g) for g in gpus)
    return _serve(places, 0, (start, {}), (claims, uuids, failed), None)


def can_be(gpus: Sequence[Gpu], claims: Sequence[AskedClaim], picks: Sequence[Pick]) -> bool:
    """True if devices fit beside each other and are what is asked for, as constraints have it."""
    cards, left = {g.name: g for g in gpus}, {g.name: _Left.of(g) for g in gpus}
    values: dict[tuple[int, int], frozenset[Any]] = {}
    numbers = {c.body["metadata"]["name"]: number for number, c in enumerate(claims)}
    for pick in picks:
        number, card = numbers[pick.claim.name], cards[pick.gpu]
        profile = card.geometry.by_name(pick.profile) if card.geometry is not None else None
        device = Device(card, profile, pick.placement)
        alternatives = (a for choices in claims[number].choices for a in choices)
        asked = next(a for a in alternatives if a.name == pick.request)
        after = left[pick.gpu].without(device)
        seen = _bind(claims[number], number, asked, device, values)
        if after is None or seen is None or not asked.selects(device):
            return False
        left[pick.gpu], values = after, seen
    return True


@dataclass(frozen=True)
class _Left:
    """Room of a GPU: a mask of memory slices, compute slices, engines."""

    mask: int
    compute: int
    engines: tuple[int, ...]

    @staticmethod
    def of(gpu: Gpu) -> _Left:
        geometry = gpu.geometry
        if geometry is None:
            return _Left(int(not gpu.instances), 0, ())
        left = _Left((1 << geometry.memory_slices) - 1, *_totals(geometry))
        for instance in gpu.instances:
            profile = geometry.by_id(instance.profile_id or 0)
            assert profile is not None
            after = left.without(Device(gpu, profile, instance.placement))
            assert after is not None
            left = after
        return left

    def without(self, device: Device) -> _Left | None:
        """Room beside ``device``; None where it does not fit."""
        if device.profile is None or device.placement is None:
            return _Left(0, 0, ()) if self.mask else None
        compute = self.compute - device.profile.compute_slices
        engines = tuple(a - b for a, b in zip(self.engines, device.profile.engines, strict=True))
        mask = device.placement.mask
        if mask & ~self.mask or compute < 0 or any(e < 0 for e in engines):
            return None
        return _Left(self.mask & ~mask, compute, engines)


def _totals(geometry: Geometry) -> tuple[int, tuple[int, ...]]:
    engines = [p.engines for p in geometry.profiles]
    most = tuple(max(e[i] for e in engines) for i in range(len(Engines._fields)))
    return max(p.compute_slices for p in geometry.profiles), most


def _devices(gpu: Gpu) -> Iterator[Device]:
    if gpu.geometry is None:
        yield Device(gpu)
        return
    for profile in gpu.geometry.profiles:
        for placement in profile.placements:
            yield Device(gpu, profile, placement)


_Fill = tuple[tuple[_Left, ...], dict[tuple[int, int], frozenset[Any]]]
"""Room of the GPUs, and the values that constraints have seen."""


def _serve(
    places: Sequence[tuple[int, Asked, Sequence[Device]]],
    at: int,
    fill: _Fill,
    known: tuple[Sequence[AskedClaim], dict[str, int], set[object]],
    last: int | None,
) -> bool:
    """Serve the places from ``at`` on."""
    (left, values), (claims, uuids, failed) = fill, known
    if at == len(places):
        return True
    state = (at, left, frozenset(values.items()), last)
    if state in failed:
        return False
    number, asked, suits = places[at]
    same_next = at + 1 < len(places) and places[at + 1] is places[at]
    for rank, device in enumerate(suits):
        if last is not None and rank <= last:
            continue  # of equal places, the devices are given in order
        index = uuids[device.gpu.uuid]
        after = left[index].without(device)
        seen = None if after is None else _bind(claims[number], number, asked, device, values)
        if after is None or seen is None:
            continue
        rest = (*left[:index], after, *left[index + 1 :])
        if _serve(places, at + 1, (rest, seen), known, rank if same_next else None):
            return True
    failed.add(state)
    return False


def _bind(
    claim: AskedClaim,
    number: int,
    asked: Asked,
    device: Device,
    values: dict[tuple[int, int], frozenset[Any]],
) -> dict[tuple[int, int], frozenset[Any]] | None:
    """The values with those of ``device``; None where a constraint of the claim forbids it."""
    found = dict(values)
    for place, constraint in enumerate(claim.constraints):
        if not {asked.name, asked.name.partition("/")[0]} & constraint.requests:
            continue
        value, key = device.value(constraint.attribute), (number, place)
        seen = found.get(key, frozenset())
        if value is None or (seen and (value in seen) == constraint.distinct):
            return None
        found[key] = seen | {value}
    return found
