"""Wants of a claim as values: devices for each of its requests, and the constraints on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from math import prod
from typing import Any

from api.config import NO_PREFERENCE, NodesConfig, PlacementConfig
from dra.claims.allocation import MAX_RESULTS, allocation_config
from dra.claims.claims import Claim
from dra.gpu.shares import NO_ASK, Ask


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

    def config(self, requests: Iterable[str]) -> list[dict[str, Any]]:
        """The configuration to put into an allocation of ``requests`` (``Want.request``)."""
        names = list(dict.fromkeys(requests))
        return allocation_config(names, self.claim.config, self.class_config)


MAX_CHOICES = 512
"""Most choices that are tried, of those that are not alike."""

_MOST_LOOKED_AT = 16 * MAX_CHOICES
"""Most choices that are looked at, with those that are like one before."""

_FEW = 8
"""Number of choices up to which finding those that are alike costs more than it saves."""

_Selected = Callable[[tuple[str, ...]], Hashable]
_Options = Mapping[int, Hashable]
"""Alternatives of a request by rank, each with a value that is equal where equal devices serve."""


class Choices:
    """Iterable of ``claims`` with one alternative chosen for every request, the best choice first.

    The best has the least sum of ranks, which is how kube-scheduler compares nodes; among equal
    sums earlier requests fare better. Choices of more devices than a claim may hold are left out,
    and those that the same devices serve as one before. ``selected`` returns a value that is equal
    for expressions that select the same devices, and a tuple of empty parts where they select none:
    such alternatives are left out, unless a request has no other. Its exceptions go through.
    """

    def __init__(self, claims: Sequence[ClaimWants], selected: _Selected | None = None) -> None:
        self._claims = claims
        self._selected = selected
        self.is_cut_off = False
        """True if the last iteration ended before all choices were tried."""

    def __iter__(self) -> Iterator[tuple[ClaimWants, ...]]:
        claims, self.is_cut_off = self._claims, False
        sizes = [len(alternatives) for claim in claims for alternatives in claim.choices]
        if max(sizes, default=1) == 1:
            yield tuple(claims)
            return
        are_few = prod(sizes) <= _FEW  # then none count as alike
        if not are_few:
            options = [*_options(claims, self._selected)]
        else:
            options = [{rank: (n, rank) for rank in range(size)} for n, size in enumerate(sizes)]
        seen, tried = set[Hashable](), 0
        for number, ranks in enumerate(_by_sum(options)):
            if tried == MAX_CHOICES or number == _MOST_LOOKED_AT:
                self.is_cut_off = True
                return
            if not are_few:
                key = frozenset(Counter(o[r] for o, r in zip(options, ranks, strict=True)).items())
                if key in seen:
                    continue
                seen.add(key)
            rest = iter(ranks)
            chosen = tuple(c.choosing([next(rest) for _ in c.choices]) for c in claims)
            if all(_devices(claim) <= MAX_RESULTS for claim in chosen):
                tried += 1
                yield chosen


def _options(claims: Sequence[ClaimWants], selected: _Selected | None) -> Iterator[_Options]:
    """Per request, the alternatives that something may serve, the first of those that are alike."""
    numbers: dict[Hashable, int] = {}
    for claim in claims:
        for alternatives in claim.choices:
            found: dict[int, int] = {}
            for rank, want in enumerate(alternatives):
                which = want.expressions if selected is None else selected(want.expressions)
                if selected is not None and isinstance(which, tuple) and not any(which):
                    continue
                kind = (
                    which,
                    replace(want, request="", class_name="", expressions=()),
                    tuple(c for c in claim.constraints if c.covers(want)),
                    claim.claim.ref.uid,
                )
                found.setdefault(numbers.setdefault(kind, len(numbers)), rank)
            yield {rank: number for number, rank in found.items()} or {0: None}


def _devices(claim: ClaimWants) -> int:
    """Least number of devices that a claim wants."""
    return sum(1 if want.everything else want.count for want in claim.wants)


def _by_sum(options: Sequence[_Options]) -> Iterator[tuple[int, ...]]:
    """Tuples of ranks in ``options``, by sum, then as tuples.

    Of requests with equal options an earlier one has no higher rank: the rest would be alike.
    """
    ranks = [[*each] for each in options]
    following: list[int | None] = []
    for n, each in enumerate(options):
        later = (k for k in range(n + 1, len(options)) if options[k] == each)
        following.append(next(later, None))
    start = (0,) * len(options)
    first = tuple(each[0] for each in ranks)
    heap, seen = [(sum(first), first, start)], {start}
    while heap:
        _, chosen, at = heappop(heap)
        yield chosen
        for n, place in enumerate(at):
            after = following[n]
            if place + 1 == len(ranks[n]) or (after is not None and at[after] == place):
                continue
            raised = (*at[:n], place + 1, *at[n + 1 :])
            if raised not in seen:
                seen.add(raised)
                known = (*chosen[:n], ranks[n][place + 1], *chosen[n + 1 :])
                heappush(heap, (sum(known), known, raised))
