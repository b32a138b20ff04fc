"""Wants of a claim as values: devices for each of its requests, and the constraints on them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from math import prod
from typing import Any

from api.config import NO_PREFERENCE, NodesConfig, PlacementConfig
from dra.claims.allocation import MAX_RESULTS, allocation_config
from dra.claims.claims import Claim
from dra.claims.classes import SHARE_CLASS, SLICE_SHARE_CLASS
from dra.gpu.shares import NO_ASK, Ask

_SHARES = frozenset({SHARE_CLASS, SLICE_SHARE_CLASS})


@dataclass(frozen=True, slots=True)
class Want:
    """``count`` devices that all ``expressions`` select, for one request of claims with that spec.

    ``request``: ``request/subrequest`` where it is one of several alternatives. ``everything``: all
    such devices of a node are wanted, whatever ``count``. ``admin``: the claim looks at the devices
    and holds none. ``nodes``: preference among nodes. ``policy``: preference among placements on
    those nodes. ``ask``: limits of its share, if it is given a device that several claims have.
    """

    request: str
    class_name: str
    expressions: tuple[str, ...]
    count: int = 1
    policy: str = PlacementConfig().policy
    nodes: NodesConfig = NO_PREFERENCE
    everything: bool = False
    admin: bool = False
    ask: Ask = NO_ASK


@dataclass(frozen=True, slots=True)
class Constraint:
    """Attribute that devices of some requests have in common, or, if ``distinct``, each its own.

    ``attribute`` is qualified (``mig.dra.dev/parentUUID``). Empty ``requests`` means all of the
    claim. A device without the attribute satisfies neither form (KEP-4381).
    """

    claim_uid: str
    attribute: str
    requests: frozenset[str] = frozenset()
    distinct: bool = False

    def covers(self, want: Want) -> bool:
        """True if it binds ``want`` of its claim; naming a request names its subrequests."""
        return (
            not self.requests
            or want.request in self.requests
            or want.request.partition("/")[0] in self.requests
        )


@dataclass(frozen=True, slots=True, eq=False)
class ClaimWants:
    """A claim that we are to allocate.

    ``choices``: for each request the wants that would serve it, best first. ``class_config``:
    configuration of the class, by ``Want.request``. ``sharing``: strategy by ``Want.request``, for
    devices that are to be shared by the processes of the claim.
    """

    claim: Claim
    choices: tuple[tuple[Want, ...], ...]
    constraints: tuple[Constraint, ...]
    class_config: Mapping[str, tuple[Mapping[str, Any], ...]]
    sharing: Mapping[str, str] = field(default_factory=dict)

    @property
    def wants(self) -> tuple[Want, ...]:
        """The first choice of every request."""
        return tuple(alternatives[0] for alternatives in self.choices)

    @property
    def views(self) -> bool:
        """True if it only looks at devices (``adminAccess``): all its requests do, or none."""
        for alternatives in self.choices:  # loops: this is asked of each decision
            for want in alternatives:
                if want.admin:
                    return True
        return False

    def of(self, claim: Claim) -> ClaimWants:
        """The same for another claim, whose spec is equal."""
        bound = tuple(replace(c, claim_uid=claim.ref.uid) for c in self.constraints)
        return ClaimWants(claim, self.choices, bound, self.class_config, self.sharing)

    def choosing(self, choice: Iterable[int]) -> ClaimWants:
        """The claim with one alternative, by its rank, for each request."""
        chosen = tuple([(a[rank],) for a, rank in zip(self.choices, choice, strict=True)])
        return ClaimWants(self.claim, chosen, self.constraints, self.class_config, self.sharing)

    def of_several(self) -> ClaimWants:
        """The wants of a claim that several containers use."""
        choices = tuple(
            tuple(replace(want, ask=replace(want.ask, several=True)) for want in alternatives)
            for alternatives in self.choices
        )
        return replace(self, choices=choices)

    def config(self, requests: Iterable[str]) -> list[dict[str, Any]]:
        """The configuration to put into an allocation of ``requests`` (``Want.request``)."""
        names = list(dict.fromkeys(requests))
        return allocation_config(names, self.claim.config, self.class_config)


def is_mixed(claim: ClaimWants) -> bool:
    """True if a claim wants a share of a device together with another device or a share unlike it.

    False while a request still has alternatives.
    """
    if any(len(alternatives) > 1 for alternatives in claim.choices):
        return False
    held = {(want.ask, want.class_name) for want in claim.wants if not want.admin}
    return len(held) > 1 and any(ask.stated or name in _SHARES for ask, name in held)


MAX_CHOICES = 512
"""Most choices that are tried. A request has at most eight alternatives: three are tried in full.
"""

_FEW = 8
"""Number of choices up to which finding those that are alike costs more than it saves."""


def choices(
    claims: Sequence[ClaimWants], selected: Callable[[tuple[str, ...]], Hashable] | None = None
) -> Iterator[tuple[ClaimWants, ...]]:
    """``claims`` with one alternative chosen for every request, the best choice first.

    The best has the least sum of ranks, which is how kube-scheduler compares nodes; among equal
    sums earlier requests fare better. Choices of more devices than a claim may hold are left out.
    ``selected`` returns a value that is equal for expressions that select the same devices: with
    it, a choice that the same devices serve as one before is left out too. Its exceptions go
    through.
    """
    sizes = [len(alternatives) for claim in claims for alternatives in claim.choices]
    if max(sizes, default=1) == 1:
        yield tuple(claims)
        return
    is_many = prod(sizes) > _FEW
    served = [*_served(claims, selected)] if selected is not None and is_many else []
    seen = set[Hashable]()
    for ranks in _by_sum(sizes):
        if served:
            key = tuple(sorted(number[rank] for number, rank in zip(served, ranks, strict=True)))
            if key in seen:
                continue
            seen.add(key)
        rest = iter(ranks)
        chosen = tuple(c.choosing([next(rest) for _ in c.choices]) for c in claims)
        if all(_devices(claim) <= MAX_RESULTS for claim in chosen):
            yield chosen


def _served(
    claims: Sequence[ClaimWants], selected: Callable[[tuple[str, ...]], Hashable]
) -> Iterator[list[int]]:
    """Per request, a number for each alternative, equal where equal devices serve."""
    numbers: dict[Hashable, int] = {}
    for claim in claims:
        for alternatives in claim.choices:
            kinds = (
                (
                    selected(want.expressions),
                    replace(want, request="", class_name="", expressions=()),
                    tuple(c for c in claim.constraints if c.covers(want)),
                    claim.claim.ref.uid,
                )
                for want in alternatives
            )
            yield [numbers.setdefault(kind, len(numbers)) for kind in kinds]


def _devices(claim: ClaimWants) -> int:
    """Least number of devices that a claim wants."""
    return sum(1 if want.everything else want.count for want in claim.wants)


def _by_sum(sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The first ``MAX_CHOICES`` tuples of ranks below ``sizes``, by sum, then as tuples."""
    start = (0,) * len(sizes)
    heap, seen = [(0, start)], {start}
    for _ in range(MAX_CHOICES):
        if not heap:
            return
        total, ranks = heappop(heap)
        yield ranks
        for index, size in enumerate(sizes):
            following = (*ranks[:index], ranks[index] + 1, *ranks[index + 1 :])
            if following[index] < size and following not in seen:
                seen.add(following)
                heappush(heap, (total + 1, following))
