"""Several devices on one node: found whenever they exist, and the cheapest of all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra.allocator.moves import MoveTable
from dra.allocator.ongoing import Budget
from dra.allocator.score import Cost, Situation, Weights, sws
from dra.allocator.search.combine import combine
from dra.allocator.search.constraints import Vector
from dra.allocator.search.options import Option, find_options, sum_of
from dra.cel.offers import Offer
from dra.gpu.geometry import EMPTY, Geometry, Usage
from tests.controller.allocator.devices.options import gpu_state, wants
from tests.dra.gpus import A100, THIRDS

TABLES = {id(g): MoveTable(g) for g in (A100, THIRDS)}
WEIGHTS = {
    id(A100): Weights((0.3, 0.1, 0.2, 0.4, 0.9, 1.1, 2.0), (0b1111011, 0b11)),
    id(THIRDS): Weights((0.5, 0.2, 1.0), (0b111, 0b1)),
}


def offers(geometry: Geometry, *names: str) -> list[Offer]:
    return [Offer(p, p.memory_mib) for p in geometry.profiles if p.name in names]


def together(gpus: list[list[Option]], target: Vector) -> tuple[Cost, list[Option]] | None:
    return combine(gpus, target, {}, Budget())


def served(
    gpus: list[tuple[Geometry, Usage]], wanted: list[list[str]]
) -> tuple[Cost, list[Option]] | None:
    """``wanted`` are the profile names that would do, per type; one device each."""
    target = (1,) * len(wanted)
    options = [
        find_options(
            gpu_state(geometry, usage),
            wants(target, [tuple(offers(geometry, *w)) for w in wanted], sws),
            WEIGHTS[id(geometry)],
            Budget(),
        )
        for geometry, usage in gpus
    ]
    return together(options, target)


def by_trying(gpus: list[tuple[Geometry, Usage, int]], wanted: list[list[str]]) -> Iterator[Cost]:
    """The costs of all ways to serve ``wanted``, one after the other."""
    if not wanted:
        yield ()
        return
    for index, (geometry, usage, made) in enumerate(gpus):
        for offer in offers(geometry, *wanted[0]):
            assert offer.profile is not None
            situation = Situation(usage, made, WEIGHTS[id(geometry)])
            for move in TABLES[id(geometry)].moves(usage, offer.profile):
                cost = (offer.size, *sws(situation, move))
                after = [*gpus]
                after[index] = (geometry, move.after, made + 1)
                for rest in by_trying(after, wanted[1:]):
                    yield sum_of(cost, rest)


NAMES = [p.name for g in (A100, THIRDS) for p in g.profiles]


@st.composite
def nodes(draw: st.DrawFn) -> list[tuple[Geometry, Usage]]:
    gpus = []
    for geometry in draw(st.lists(st.sampled_from([A100, THIRDS]), min_size=1, max_size=2)):
        usage = EMPTY
        for _ in range(draw(st.integers(0, 4))):
            profile = draw(st.sampled_from(geometry.profiles))
            moves = TABLES[id(geometry)].moves(usage, profile)
            if moves:
                usage = draw(st.sampled_from(moves)).after
        gpus.append((geometry, usage))
    return gpus


@settings(max_examples=150, deadline=None)
@given(
    nodes(),
    st.lists(
        st.lists(st.sampled_from(NAMES), min_size=1, max_size=2, unique=True),
        min_size=1,
        max_size=4,
    ),
)
def test_a_solution_is_found_exactly_when_one_exists_and_is_the_cheapest(
    gpus: list[tuple[Geometry, Usage]], wanted: list[list[str]]
) -> None:
    found = served(gpus, wanted)
    cheapest = min(by_trying([(g, u, 0) for g, u in gpus], wanted), default=None)
    assert (found is None) == (cheapest is None)
    if found is None or cheapest is None:
        return
    assert found[0][:2] == pytest.approx(cheapest[:2])
    after = [usage for _, usage in gpus]
    for index, ((geometry, _), option) in enumerate(zip(gpus, found[1], strict=True)):
        for device in option.devices:
            assert device.offer.profile is not None
            assert device.placement is not None
            assert device.offer.profile.name in wanted[device.type]
            moves = TABLES[id(geometry)].moves(after[index], device.offer.profile)
            (after[index],) = [m.after for m in moves if m.placement == device.placement]
    assert sorted(g.type for o in found[1] for g in o.devices) == list(range(len(wanted)))
