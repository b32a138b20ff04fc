"""Everything at random, from pods to nodes: nothing is given out twice, leaked or forgotten."""

from __future__ import annotations

import os

import pytest

from controller import times
from controller.queue import line
from dra.common.resources import Obj
from dra.gangs.membership import COUNT_LABEL, NAME_LABEL
from tests.controller.helpers.objects import FINALIZER
from tests.controller.world.world import World
from tests.controller.world.worldchecks import check_quotas
from tests.controller.world.worldnodes import GPUS
from tests.controller.world.worldobjects import HOPELESS, claims_of, held

THEIRS: tuple[tuple[str, ...], ...] = ((), (), (), ("node-b",), ("node-a", "node-b"))
"""Nodes that kube-scheduler allocates, in turns."""

SEEDS = int(os.environ.get("WORLD_SEEDS", "1"))
"""As many times the seeds; before larger changes are merged, ten times."""


@pytest.mark.parametrize("seed", range(36 * SEEDS))
def test_a_world_comes_to_rest_with_nothing_given_out_twice_leaked_or_forgotten(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 2:
        monkeypatch.setattr(line, "OVERTAKEN", 1)  # slices are held back for most who wait
    world = World(seed, finalizer_at_creation=seed // 2 % 2 == 1, schedulers=THEIRS[seed % 5])
    for _ in range(300):
        world.act()
    check_rest(world)


def check_rest(world: World) -> None:
    """Have a world come to rest, and check that all is as it should be."""
    world.end()
    world.bench.run(seconds=times.HOLD[0])  # what was held back in vain is released
    world.end()
    claims = dict(world.all("resourceclaims"))
    used = {name for _, p in world.live() for name in claims_of(p)}
    for name, obj in claims.items():
        if name not in used:
            assert not held(obj), f"nobody uses {name}"
            ours = FINALIZER in obj["metadata"].get("finalizers", ())
            assert world.born or not ours, f"nobody uses {name}"
    if not world.nodes.schedulers:  # kube-scheduler knows no gangs of labels
        _check_gangs(world, claims)
    for name, obj in claims.items():
        if obj["spec"]["devices"]["requests"][0] in HOPELESS:
            assert not held(obj), f"nothing serves {name}"
    for name, pod in world.live():
        if pod["spec"].get("volumes") and not pod["spec"].get("nodeName"):
            others = {c for n, p in world.live() if n != name for c in claims_of(p)}
            mine = [claims[c] for c in claims_of(pod) if c in claims and c not in others]
            assert not any(map(held, mine)), f"{name} lacks its volume"
    waiting = set(_waiting(world, claims))
    _check_books(world, claims, waiting)
    cluster = world.bench.cluster
    for nodes in (GPUS, ()):
        cluster.make_room(*nodes)
        world.bench.run(seconds=400.0)
        world.settle()
        again = set(_waiting(world, dict(world.all("resourceclaims"))))
        assert again == waiting, "who waits is served when looked at again"


def _waiting(world: World, claims: dict[str, Obj]) -> list[str]:
    """The pods that wait for claims which could be allocated; none may be silent, or gated."""
    found = []
    for name, pod in world.live():
        mine = [claims.get(c) for c in claims_of(pod)]
        present = [c for c in mine if c is not None and "deletionTimestamp" not in c["metadata"]]
        if len(present) < len(mine):
            continue
        if all(held(c) for c in present):
            assert not pod["spec"].get("schedulingGates"), f"{name} has all and is gated"
            continue
        # kube-scheduler says why a pod without the gate waits where it allocates all nodes.
        is_theirs = GPUS.keys() <= {*world.nodes.schedulers} and not pod["spec"].get(
            "schedulingGates"
        )
        assert is_theirs or world.bench.recorder.reasons(name), f"{name} waits without a word"
        found.append(name)
    return found


def _check_gangs(world: World, claims: dict[str, Obj]) -> None:
    """No gang that lacks company has slices which it does not use."""
    gangs: dict[str, list[Obj]] = {}
    for _, pod in world.all("pods"):
        gang = pod["metadata"]["labels"].get(NAME_LABEL)
        if gang and pod["status"]["phase"] != "Failed":
            gangs.setdefault(gang, []).append(pod)
    for gang, pods in gangs.items():
        has = [[bool(held(claims.get(c, {}))) for c in claims_of(p)] for p in pods]
        served = sum(
            p["status"]["phase"] == "Succeeded" or all(h) for p, h in zip(pods, has, strict=True)
        )
        if served >= int(pods[0]["metadata"]["labels"][COUNT_LABEL]):
            continue
        for pod, own in zip(pods, has, strict=True):
            if pod["status"]["phase"] == "Pending":
                assert not any(own), f"{gang} has slices for {pod['metadata']['name']} alone"


def _check_books(world: World, claims: dict[str, Obj], waiting: set[str]) -> None:
    """Nothing is counted but what is allocated, prepared, or held back for somebody who waits."""
    kept = {o["metadata"]["uid"] for o in claims.values() if held(o)}
    kept |= {ref.uid for _, ref in world.nodes.slices.values()}
    kept |= {f"next:uid-{name}" for name in waiting}
    cluster = world.bench.cluster
    for state in (s for n in cluster.fleet.nodes.values() for s in n.gpus):
        assert {h.claim_uid for h in state.holdings} <= kept
    sums = {(name, what): held for _, name, what, held in cluster.fleet.quotas.sums()}
    assert sums == {k: n for k, n in check_quotas(claims.items(), world.quotas).items() if n}
    charged = dict.fromkeys(GPUS, 0)
    for _, pod in world.live():
        if where := pod["spec"].get("nodeName"):
            charged[where] += 1
    assert {name: cluster.hosts.used(name).get("pods", 0) for name in GPUS} == charged
