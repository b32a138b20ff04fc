"""Alternatives of requests (``firstAvailable``), in the order in which to try them for a pod."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from math import prod

from dra.claims.allocation import MAX_RESULTS
from dra.claims.requests.wants import ClaimWants

MAX_CHOICES = 512
"""More are not tried. One request has at most eight alternatives, so three are tried in full."""

_FEW = 8
"""Of so many choices, to find out which are alike costs more than it spares."""


def choices(
    claims: Sequence[ClaimWants], selected: Callable[[tuple[str, ...]], Hashable] | None = None
) -> Iterator[tuple[ClaimWants, ...]]:
    """``claims`` with one alternative chosen for every request, the best choice first.

    The best has the least sum of ranks, which is how kube-scheduler compares nodes; among equal
    sums earlier requests fare better. Choices of more devices than a claim may hold are left out,
    and where ``selected`` says what expressions come to, those that the same devices serve as one
    before. Raises as ``selected``.
    """
    sizes = [len(alternatives) for claim in claims for alternatives in claim.choices]
    if all(size == 1 for size in sizes):
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
    """Per request, a number for each alternative: equal for those that the same devices serve."""
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
