"""The benchmarks run; what they measure is for people to read."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from api.config import API_VERSION, KIND
from dra.allocator.allocate import Allocator
from dra.allocator.moves import MoveTable
from dra.allocator.score import POLICIES
from dra.gpu.inventory import AllocatorKind
from hack.bench import allocate, cluster, objects
from hack.bench.bound import bounds, facets, most_slices
from hack.bench.fleet import Cheapest, Fleet, judge
from hack.bench.objects import MIXES, geometry
from hack.bench.peers import PEERS
from hack.bench.play import Ask, play
from hack.bench.site import partitionable
from hack.bench.traffic import Scene, steady
from tests.controller.helpers.deciding import problem
from tests.controller.helpers.objects import FINALIZER, claim, gpu, mignode, request
from tests.controller.helpers.objects import cluster as cluster_of
from tests.dra.gpus import A100

TABLE = MoveTable(geometry("A100-SXM4-80GB"))


def test_no_way_to_place_exceeds_the_bounds() -> None:
    """A scene of few GPUs, which are short."""
    assert max(f[0] for f in facets(TABLE.geometry)) == pytest.approx(1 / 7), "compute of a 1g"
    for seed in range(4):
        scene = steady([MIXES["bimodal"]], 1.2, seed, gpus=8)
        limits = bounds(scene)
        for way in PEERS.values():
            fleet = Fleet(scene.nodes)
            found = play(scene.asks, fleet, way(fleet), since=scene.since).accepted
            assert found["slices"] < limits["possible slices"] < 100
            assert limits["moving slices"] <= limits["possible slices"]


def test_who_accepts_the_most_at_first_may_have_less_in_the_end() -> None:
    asks = [Ask(n, name, None) for n, name in enumerate(["1g.10gb", "7g.80gb"])]
    assert most_slices(asks, TABLE.geometry, 1) == 8.0
    early = most_slices(asks, TABLE.geometry, 1, first=asks[:1])
    assert early == pytest.approx(1 + 8 * 6 / 7), "a 1g, and six sevenths of a 7g beside it"
    found = bounds(Scene([[TABLE.geometry]], asks))
    assert found["early slices"] == pytest.approx(100 * early / 9)
    assert "early slices" not in bounds(Scene([[TABLE.geometry]], asks[:1]))


@pytest.mark.parametrize("policy", [*POLICIES, "steered"])
def test_the_benchmarks_fleet_places_as_the_product_does(policy: str) -> None:
    """Slices and sets of slices come and go; node, GPU and start are the same each time."""
    names, is_steered = ["node-a", "node-b", "node-c"], policy == "steered"
    known = cluster_of(*names)
    kind = AllocatorKind.SCHEDULER if is_steered else AllocatorKind.CONTROLLER
    for name in names:
        known.set_mignode(mignode(name, gpu(0, name), gpu(1, name), allocator=kind))
    ours = Fleet([[A100, A100]] * len(names))
    choose = PEERS["steered"](ours)
    policy = "sws" if is_steered else policy
    if not is_steered:
        choose = Cheapest(ours, judge(ours, POLICIES[policy]))
    draw, held, refused = random.Random(3), [], 0
    for number in range(120):
        profile = draw.choice([p.name for p in A100.profiles if not p.is_variant])
        count = 1 if is_steered else draw.choice((1, 1, 1, 2, 3))
        asked = request("r", f"mig-{profile}", count=count)
        parameters = {"apiVersion": API_VERSION, "kind": KIND, "placement": {"policy": policy}}
        config = [{"opaque": {"driver": "mig.dra.dev", "parameters": parameters}}]
        found = problem(known, claim(f"c{number}", asked, config=config))
        found = replace(found, pod=replace(found.pod, gates=(FINALIZER,)))
        decision = Allocator(known.fleet, known.hosts).decide(found)
        devices = choose(profile, count)
        places = sorted((d.gpu, d.move.placement) for d in devices or ())
        picks = decision.picks if decision is not None else ()
        assert places == sorted(
            (2 * names.index(decision.node if decision else "") + int(p.gpu[-1]), p.placement)
            for p in picks
        ), f"{policy}: {count} times {profile}, after {number} requests"
        if decision is None or devices is None:
            refused += 1
        else:
            ours.take(devices)
            [(ref, allocation)] = decision.allocations(found.claims, known.fleet.driver).items()
            known.fleet.hold(ref, allocation)
            for pick in picks:
                known.fleet.demand.observe(pick.profile)
            held.append((ref.uid, devices))
        if held and draw.random() < 0.45:
            uid, devices = held.pop(draw.randrange(len(held)))
            known.fleet.release(uid)
            ours.give_back(devices)
    assert 0 < refused < 60


def test_decisions_are_timed_per_size_of_the_cluster() -> None:
    arguments = ["--nodes", "1", "--nodes", "2", "--decisions", "20"]
    result = CliRunner().invoke(allocate.main, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    rows = [line.split() for line in result.output.splitlines()[1:]]
    kinds = ["slice", "together", "apart", "either", "by-size", "refused", "moves", "ends"]
    assert [(row[0], row[3]) for row in rows] == [(n, kind) for n in "12" for kind in kinds]
    assert all(int(row[1]) > 0 for row in rows)
    placed = {row[3]: row[4] for row in rows[len(kinds) :]}
    assert placed["refused"] == "0%"
    assert placed["slice"] == placed["by-size"] == placed["either"] == "100%"


def test_without_a_control_planes_binaries_the_benchmark_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    result = CliRunner().invoke(cluster.main, [], catch_exceptions=False)
    assert result.exit_code == 0
    assert result.output.startswith("skipped: no etcd, kube-apiserver")
    assert "KUBEBUILDER_ASSETS" in result.output


def test_the_slices_of_the_cluster_benchmark_are_within_the_limits() -> None:
    slices = partitionable(objects.inventory("node", TABLE.geometry))
    counters, *rest = (s["spec"] for s in slices)
    assert len(counters["sharedCounters"]) <= 8
    assert all(0 < len(s["devices"]) <= 64 for s in rest)
    assert {s["pool"]["resourceSliceCount"] for s in (counters, *rest)} == {len(slices)}
