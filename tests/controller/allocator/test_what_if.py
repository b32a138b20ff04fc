"""Decisions on a fleet that is only supposed are those of such a fleet; the live one stays."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.cluster.cluster import Cluster
from dra.allocator.allocate import Allocator
from dra.allocator.explain.answers import as_obstacle
from dra.allocator.explain.judge import explain
from dra.allocator.fleet import Fleet
from dra.allocator.gpustate import Holder
from dra.allocator.problem import Decision, Problem
from dra.claims.allocation import AllocatedDevice, Allocation
from dra.common.resources import Obj
from dra.gpu.inventory import ClaimRef
from tests.controller.allocator.devices.test_single import clusters
from tests.controller.helpers.deciding import plan, problem
from tests.controller.helpers.objects import claim, request

PARENT = "mig.dra.dev/parentUUID"
UUID = "device.attributes['mig.dra.dev'].uuid"
ASKED: dict[str, Obj] = {
    "small": claim("c", request("r", "mig-1g.5gb")),
    "large": claim("c", request("r", "mig-7g.40gb")),
    "any size": claim("c", request("r", "mig.dra.dev")),
    "whole": claim("c", request("r", "gpu.dra.dev")),
    "apart": claim(
        "c",
        request("r", "mig-2g.10gb", count=2),
        constraints=[{"requests": ["r"], "distinctAttribute": PARENT}],
    ),
    "together": claim("c", request("r", "mig-1g.5gb", count=3)),
    "all": claim("c", request("r", "gpu.dra.dev", allocationMode="All")),
    "told apart": claim("c", request("r", "gpu.dra.dev", f"{UUID} != 'GPU-node-0-0'")),
}


def held(decision: Decision, number: int, driver: str) -> Holder:
    """A claim that holds what was decided."""
    devices = tuple(
        AllocatedDevice(p.request, driver, decision.pool, p.device) for p in decision.picks
    )
    ref = ClaimRef("default", f"held-{number}", f"uid-{number}")
    return ref, Allocation(devices, decision.node)


def filled(known: Cluster, wanted: Iterable[str]) -> list[Holder]:
    """Claims that get what is ``wanted`` one after the other; those that hold something."""
    holders = []
    for number, name in enumerate(wanted):
        decision = Allocator(known.fleet, known.hosts).decide(problem(known, ASKED[name]))
        if decision is not None:
            holders.append(held(decision, number, known.driver))
            known.fleet.hold(*holders[-1])
    return holders


def made(known: Cluster, holders: Iterable[Holder]) -> Fleet:
    """A fleet of the same GPUs with nobody else's claims."""
    fleet = Fleet(known.driver, known.fleet.kinds, known.fleet.demand)
    for node in known.fleet.nodes.values():
        fleet.set_inventory(node.inventory)
    for ref, allocation in holders:
        fleet.hold(ref, allocation)
    return fleet


def books(fleet: Fleet) -> object:
    """All that a fleet says, and who it is."""
    states = [s for node in fleet.nodes.values() for s in node.gpus]
    return (
        {name: (id(n), n.fingerprints) for name, n in fleet.nodes.items()},
        [(id(s), dict(s.claims), s.traits, s.fingerprint, s.blocked) for s in states],
        dict(fleet.alike),
        {number: (id(g.state), [*g.members]) for number, g in fleet.groups.items()},
        {s.table: fleet.weights(s.table) for s in states if s.table is not None},
        (fleet.whole, fleet.shared, fleet.has_idle),
        {name: fleet.claims_on(name) for name in fleet.nodes},
    )


def answers(found: Problem, known: Cluster, fleet: Fleet) -> object:
    """Decision on a problem, reasons against it, and what would be held back."""
    allocator = Allocator(known.fleet, known.hosts).on(fleet)
    decision = allocator.decide(found)
    why = None if decision else as_obstacle(explain(found, allocator))
    return decision, why, plan(found, allocator)


@settings(max_examples=8, deadline=None)
@given(
    known=clusters(),
    wanted=st.lists(st.sampled_from([*ASKED]), max_size=12),
    gone=st.sets(st.integers(0, 11)),
    moved=st.booleans(),
    steps=st.booleans(),
)
def test_decisions_on_a_supposed_fleet_are_those_of_such_a_fleet(
    known: Cluster, wanted: list[str], gone: Collection[int], *, moved: bool, steps: bool
) -> None:
    holders = filled(known, wanted)
    uids = {f"uid-{number}" for number in gone}
    kept = [holder for holder in holders if holder[0].uid not in uids]
    added = []
    if moved and kept:
        # The last takes what the first that goes has given up, on a node that may be another.
        freed = [holder for holder in holders if holder[0].uid in uids]
        added = [(kept[-1][0], each[1]) for each in freed[:1]]
        kept = [*kept[:-1], *added] if added else kept
    fleet = known.fleet
    states = [state for node in fleet.nodes.values() for state in node.gpus]
    pairs = {(state.fingerprint, state.traits) for state in states}
    assert len(pairs) == len({f for f, _ in pairs}) == len({t for _, t in pairs})
    assert fleet.groups.keys() == {f for f, _ in pairs}, "those in use, and no others"
    before = books(fleet)
    if steps:
        view: Fleet = fleet.without((), holding=added).without(uids)
    else:
        view = fleet.without(uids, holding=added)
    fresh = made(known, kept)
    for body in ASKED.values():
        found = problem(known, body)
        assert answers(found, known, view) == answers(found, known, fresh)
    assert books(fleet) == before
