"""Random claims on equal GPUs: what kube-scheduler serves, what the controller serves, and what is.

The truth is found by trying (``smallstates``). Where a claim has several devices kube-scheduler may
refuse what there is room for: what it tried in vain keeps its counters (kubernetes#140436).
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra.common.resources import Obj
from dra.gpu.names import mig_device
from hack.cluster.binaries import Binaries
from tests.cluster.harness.daemons import DRIVER
from tests.cluster.harness.pods import pod
from tests.cluster.harness.schedulersite import Site, node, settled, site
from tests.cluster.harness.workload import SLEEPING
from tests.controller.helpers.objects import gpu, instance
from tests.dra.allocator.smallstates import AskedClaim, choices_of, random_claim, serves

MODES = {"scheduler": "sched", "controller": "ours"}
CASES = 24
FILLED = (("3g.20gb", 0, 0), ("1g.5gb", 6, 0), ("2g.10gb", 2, 1))
"""Profile, start and GPU of what is taken on both nodes in the second half of the cases."""

SEEDS = {False: 0, True: 5}
"""By whether something is taken: each of that decides two of the cases or more."""


@pytest.fixture(scope="module")
def twins(binaries: Binaries, root: Path) -> Iterator[Site]:
    """A node of each allocator, with two empty GPUs each."""
    nodes = {name: (mode, 2) for mode, name in MODES.items()}
    with site(binaries, root / "tw", nodes, {}) as made:
        made.wait("slices", lambda: made.published("sched"))
        yield made


def suitable(draw: random.Random) -> AskedClaim:
    """A claim that asks for nothing of which the twins have other values than the tests' GPUs."""
    while True:
        found = random_claim(draw, "c")
        text = json.dumps(found.body)
        if "parentUUID.endsWith" not in text and "pcieRoot" not in text:
            return found


def fill(made: Site) -> None:
    """Have claims with the same devices on both nodes."""
    for name in MODES.values():
        for number, (profile, start, minor) in enumerate(FILLED):
            known = instance(profile, start)
            device = mig_device(minor, profile, profile_id=known.profile_id or 0, start=start)
            called = f"fill-{name}-{number}"
            body: Obj = {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": called},
                "spec": {
                    "devices": {
                        "requests": [
                            {"name": "r", "exactly": {"deviceClassName": f"mig-{profile}"}}
                        ]
                    }
                },
            }
            made.api.create(body)
            result = {"request": "r", "driver": DRIVER, "pool": name, "device": str(device)}
            field = {"key": "metadata.name", "operator": "In", "values": [name]}
            allocation = {
                "devices": {"results": [result]},
                "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
            }
            patch = {"status": {"allocation": allocation}}
            made.api.patch("ResourceClaim", called, patch, subresource="status")


def claims_of_cases(made: Site) -> list[Obj]:
    every = made.api.list("ResourceClaim")
    return [c for c in every if not c["metadata"]["name"].startswith("fill-")]


@pytest.mark.parametrize("is_filled", [False, True], ids=["empty", "filled"])
def test_both_allocators_serve_what_there_is(twins: Site, *, is_filled: bool) -> None:
    draw, api = random.Random(SEEDS[is_filled]), twins.api
    gpus = [gpu(n) for n in range(2)]
    if is_filled:
        fill(twins)
        gpus = [
            gpu(n, instances=tuple(instance(p, s) for p, s, minor in FILLED if minor == n))
            for n in range(2)
        ]
    for case in range(CASES // 2):
        asked = suitable(draw)
        fits = any(serves(gpus, [asked], chosen) for chosen in choices_of([asked]))
        template = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate"}
        name = f"case-{int(is_filled)}-{case}"
        body = {**template, "metadata": {"name": name}, "spec": {"spec": asked.body["spec"]}}
        api.create(body)
        names = {mode: f"{name}-{mode}" for mode in MODES}
        for mode, called in names.items():
            uses = {"gpu": {"resourceClaimTemplateName": name}}
            api.create(pod(called, SLEEPING, claims=uses, nodeSelector={"allocator": mode}))
        told = json.dumps(asked.body["spec"])
        twins.wait(told, lambda names=names: settled(api, names["scheduler"]))
        if fits:
            twins.wait(told, lambda names=names: node(api, names["controller"]))
        by_scheduler = settled(api, names["scheduler"]) == "bound"
        by_controller = bool(node(api, names["controller"]))
        assert by_controller is fits, told
        assert fits or not by_scheduler, told
        several = len(asked.choices) > 1 or asked.choices[0][0].count > 1
        assert by_scheduler is fits or several, told
        for called in names.values():
            api.delete("Pod", called, grace=0)
        twins.wait("end of the claims", lambda: claims_of_cases(twins) == [])
