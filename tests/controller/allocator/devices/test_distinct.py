"""``distinctAttribute``: devices that differ are found exactly when they exist."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dra.gpu.geometry import Occupant, Placement, Profile
from dra.gpu.inventory import Gpu, Instance
from tests.controller.helpers.deciding import decide, why
from tests.controller.helpers.objects import (
    claim,
    filled,
    gpu,
    request,
    with_gpus,
)
from tests.dra.gpus import A100

APART = {"distinctAttribute": "mig.dra.dev/parentUUID"}


def test_slices_on_different_gpus_are_found_when_asked_for() -> None:
    asked = claim("c", request("r", count=2), constraints=[APART])
    decision = decide(with_gpus(gpu(0), filled(1, 0, 1, 2)), asked)
    assert decision is not None
    assert {p.gpu for p in decision.picks} == {"gpu-0", "gpu-1"}
    found = why(with_gpus(gpu(0)), asked)
    assert "with different mig.dra.dev/parentUUID" in found.message


def test_two_constraints_hold_together() -> None:
    """Pairs on one GPU each, and the pairs on different ones."""
    names = ("a", "b", "c", "d")
    constraints = [
        {"matchAttribute": "mig.dra.dev/parentUUID", "requests": ["a", "b"]},
        {"matchAttribute": "mig.dra.dev/parentUUID", "requests": ["c", "d"]},
        {**APART, "requests": ["b", "c"]},
    ]
    asked = claim("c", *(request(n, "mig-2g.10gb") for n in names), constraints=constraints)
    decision = decide(with_gpus(gpu(0), gpu(1)), asked)
    assert decision is not None
    on = {p.request: p.gpu for p in decision.picks}
    assert on["a"] == on["b"] != on["c"] == on["d"]


def test_a_device_without_the_attribute_satisfies_no_constraint() -> None:
    for kind in ("matchAttribute", "distinctAttribute"):
        asked = claim("c", request("r"), constraints=[{kind: "mig.dra.dev/colour"}])
        assert decide(with_gpus(gpu(0)), asked) is None


PROFILES = ("1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb")
ATTRIBUTES = ("parentUUID", "profile", "type")


@st.composite
def gpus(draw: st.DrawFn) -> list[Gpu]:
    found = []
    for minor in range(draw(st.integers(1, 3))):
        starts = draw(st.lists(st.integers(0, 6), max_size=5, unique=True))
        found.append(filled(minor, *starts))
    return found


def fits_apart(gpus: list[Gpu], wanted: list[tuple[str, bool]], attributes: list[str]) -> bool:
    """Whether one may choose devices one after the other; the plainest way to find out."""

    def values(at: Gpu, profile: Profile) -> tuple[str, ...]:
        known = {"parentUUID": at.uuid, "profile": profile.name, "type": "mig"}
        return tuple(f"{a}={known[a]}" for a in attributes)

    def rest(number: int, held: dict[int, list[Occupant]], used: frozenset[str]) -> bool:
        if number == len(wanted):
            return True
        name, bound = wanted[number]
        profile = A100.by_name(name)
        assert profile is not None
        for at in gpus:
            here = held[at.minor]
            marks = frozenset(values(at, profile)) if bound else frozenset[str]()
            if marks & used:
                continue
            for placement in A100.free_placements(A100.usage(here), profile):
                more = [*here, Occupant(placement, profile.id)]
                if rest(number + 1, {**held, at.minor: more}, used | marks):
                    return True
        return False

    start = {g.minor: [i.occupant for i in g.instances] for g in gpus}
    return rest(0, start, frozenset())


@settings(max_examples=120, deadline=None)
@given(
    gpus(),
    st.lists(st.tuples(st.sampled_from(PROFILES), st.booleans()), min_size=1, max_size=4),
    st.lists(st.sampled_from(ATTRIBUTES), min_size=1, max_size=2, unique=True),
)
def test_devices_that_differ_are_found_exactly_when_they_exist(
    gpus: list[Gpu], wanted: list[tuple[str, bool]], attributes: list[str]
) -> None:
    requests = [request(f"r{n}", f"mig-{p}") for n, (p, _) in enumerate(wanted)]
    bound = [f"r{n}" for n, (_, yes) in enumerate(wanted) if yes]
    constraints = [
        {"distinctAttribute": f"mig.dra.dev/{a}", "requests": bound} for a in attributes if bound
    ]
    decision = decide(with_gpus(*gpus), claim("c", *requests, constraints=constraints))
    assert (decision is not None) == fits_apart(gpus, wanted, attributes)
    if decision is None:
        return
    held: dict[str, list[Instance | Placement]] = {}
    for pick in decision.picks:
        assert pick.placement is not None
        at = next(g for g in gpus if g.name == pick.gpu)
        here = held.setdefault(pick.gpu, [i.placement for i in at.instances])
        assert not any(pick.placement.overlaps(p) for p in here if isinstance(p, Placement))
        here.append(pick.placement)
    for attribute in attributes:
        seen = [
            {"parentUUID": p.gpu, "profile": p.profile, "type": "mig"}[attribute]
            for p in decision.picks
            if p.request in bound
        ]
        assert len(seen) == len(set(seen))
