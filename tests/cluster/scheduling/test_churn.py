"""Pods at random for minutes, and leaders that end in the middle: no slice is given twice."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from dra.common.resources import Obj
from hack.cluster.api import Api, ApiError
from hack.cluster.binaries import Binaries
from hack.cluster.controlplane import ControlPlane
from hack.cluster.installation import FLAG, finalizers_at_creation
from sim.processes import wait_for
from tests.cluster.harness.daemons import DRIVER
from tests.cluster.harness.ground import served_plane
from tests.cluster.harness.pods import pod
from tests.cluster.harness.standins import StandIns
from tests.cluster.harness.watcher import Watcher
from tests.cluster.harness.workload import SLEEPING
from tests.cluster.scheduling.churn import SHARED, Churn
from tests.cluster.scheduling.ledger import Ledger
from tests.cluster.scheduling.replicas import Replicas
from tests.controller.helpers.objects import FINALIZER, allocated, gpu, inventory

SECONDS = float(os.environ.get("MIG_CHURN_SECONDS", "180"))


SEED = int(os.environ.get("MIG_SEED", "4"))


SLOTS = 200


BURST = 60


NODES = tuple(f"fake-churn-{n}" for n in range(5))


GPUS = 4


@dataclass(frozen=True, slots=True)
class Arena:
    """A cluster of nodes without kubelet, everything on it watched."""

    control_plane: ControlPlane
    api: Api
    ledger: Ledger
    nodes: StandIns
    logs: Path
    flags: tuple[str, ...]

    def controllers(self, *identities: str) -> Replicas:
        return Replicas(self.control_plane, self.logs, *identities, flags=self.flags)

    def check(self) -> None:
        """No slice was held twice, by any event so far."""
        assert self.ledger.overlaps == []
        assert self.nodes.collisions == []

    def pods(self) -> list[Obj]:
        return self.api.list("Pod")

    def drain(self, replicas: Replicas) -> None:
        """Deletes pods that are bound until every other one has been bound too, and all are gone.

        So nobody waits for ever: whoever waits gets a slice when others leave.
        """
        seen: set[str] = set()

        def emptied() -> bool:
            self.nodes.check()
            pods = self.pods()
            bound = [p for p in pods if p["spec"].get("nodeName")]
            for each in bound:
                if each["metadata"]["uid"] not in seen:
                    seen.add(each["metadata"]["uid"])
                    self.api.delete("Pod", each["metadata"]["name"])
            return not pods

        def why() -> str:
            waiting = [p["metadata"]["name"] for p in self.pods() if not p["spec"].get("nodeName")]
            about = [
                f"{e['involvedObject']['name']}: {e['message']}"
                for e in self.api.list("Event")
                if e["involvedObject"]["name"] in waiting and e["reason"] != "FailedScheduling"
            ]
            return "\n".join([f"waiting: {waiting}", *about[-10:], replicas.tails()])

        wait_for("end of the last pod", emptied, timeout=180, interval=0.3, context=why)

        def left() -> list[Obj]:
            claims = self.api.list("ResourceClaim")
            return [c for c in claims if not _is_idle_shared(c)]

        def released() -> bool:
            return not left() and not self.ledger.holders and not self.nodes.prepared

        def stuck() -> str:
            return f"{left()}\n{self.ledger.holders}\n{self.nodes.prepared}\n{replicas.tails()}"

        wait_for("release of the last claim", released, timeout=60, context=stuck)
        self.nodes.check()


def _is_idle_shared(claim: Obj) -> bool:
    named = claim["metadata"]["name"].startswith("shared-")
    return named and not claim.get("status", {}).get("allocation")


@pytest.fixture(scope="module", params=["installed by the chart", "own finalizer"])
def arena(binaries: Binaries, root: Path, request: pytest.FixtureRequest) -> Iterator[Arena]:
    """Claims have the finalizer from their creation, or the controller puts it there."""
    at_creation = request.param == "installed by the chart"
    home, logs = root / f"churn-{at_creation}", root / f"churn-logs-{at_creation}"
    logs.mkdir()
    with (
        served_plane(binaries, home) as control_plane,
        finalizers_at_creation(control_plane.api) if at_creation else contextlib.nullcontext(),
    ):
        api = control_plane.api
        ledger = Ledger(DRIVER)
        inventories = [inventory(n, *(gpu(m, n) for m in range(GPUS))) for n in NODES]
        nodes = StandIns(api, inventories, seed=SEED)
        with Watcher(api, "ResourceClaim", ledger.enter), Watcher(api, "Pod", nodes.pod), nodes:
            Churn(api, slots=1, seed=SEED).prepare()
            flags = (FLAG,) if at_creation else ()
            yield Arena(control_plane, api, ledger, nodes, logs, flags)


def _classes(api: Api) -> None:
    wait_for("classes", lambda: api.find("DeviceClass", "mig-min-10gb") is not None)


@pytest.mark.timeout(SECONDS + 600)
def test_pods_at_random_share_no_slice_and_leave_no_claim(arena: Arena) -> None:
    churn = Churn(arena.api, slots=SLOTS, seed=SEED)
    with arena.controllers("alone") as replicas:
        _classes(arena.api)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            churn.step()
            arena.nodes.check()
            arena.check()
        arena.drain(replicas)
    arena.check()
    assert len([c for c in arena.api.list("ResourceClaim") if _is_idle_shared(c)]) == SHARED
    print(  # noqa: T201 - the figures of the run, shown by -rP
        f"{churn.created} pods created, {churn.deleted} deleted, {arena.ledger.allocations} "
        f"allocations, {arena.ledger.events} events, at most {arena.ledger.most_slices} of "
        f"{8 * GPUS * len(NODES)} memory slices and {arena.nodes.most_prepared} claims prepared, "
        f"{arena.nodes.left_behind} left behind"
    )


@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", ["asked", "killed", "frozen"])
def test_a_leader_that_ends_in_a_burst_gives_no_slice_twice(arena: Arena, how: str) -> None:
    ledger, churn = arena.ledger, Churn(arena.api, slots=1, seed=SEED, prefix=how)
    with arena.controllers("a", "b") as replicas:
        _classes(arena.api)
        first = replicas.wait_for_leader()
        before = ledger.allocations
        while ledger.allocations < before + 10:
            churn.create()
        with _ended(replicas, first, how=how):
            done = ledger.allocations
            while churn.created < BURST:
                churn.create()
            replicas.wait_for_leader(other_than=first)
            wait_for("the successor's allocations", lambda: ledger.allocations > done)
        arena.drain(replicas)
    arena.check()


def test_what_a_leader_sent_that_crashed_is_refused_once_the_next_has_decided(arena: Arena) -> None:
    api, node = arena.api, NODES[0]

    def create(name: str, where: str) -> None:
        claims = {"gpu": {"resourceClaimTemplateName": "whole"}}
        selector = {"kubernetes.io/hostname": where}
        api.create(pod(name, SLEEPING, claims=claims, nodeSelector=selector))

    def made() -> Obj | None:
        claims = api.list("ResourceClaim")
        return next((c for c in claims if c["metadata"]["name"].startswith("former-")), None)

    create("former", "no-such-node")
    name = wait_for("claim", made)["metadata"]["name"]
    with arena.controllers("former") as replicas:
        _ready(replicas, "former")
        ours = api.patch("ResourceClaim", name, {"metadata": {"finalizers": [FINALIZER]}})
        assert replicas.processes["former"].kill() != 0
    late = {
        "metadata": {key: ours["metadata"][key] for key in ("uid", "resourceVersion")},
        "status": allocated(ours, node, "gpu-0-mig-7g40gb-0-0")["status"],
    }
    before = arena.ledger.allocations
    with arena.controllers("next") as replicas:
        for number in range(GPUS):
            create(f"next-{number}", node)
        allocations = f"allocation of all GPUs of {node}"
        wait_for(
            allocations, lambda: arena.ledger.allocations == before + GPUS, context=replicas.tails
        )
        assert f"{DRIVER}/fence" in api.get("ResourceClaim", name)["metadata"]["annotations"]
        with pytest.raises(ApiError) as refused:
            api.patch("ResourceClaim", name, late, subresource="status")
        assert refused.value.status == HTTPStatus.CONFLICT
        api.delete("Pod", "former", grace=0)
        arena.drain(replicas)
    arena.check()


def _ready(replicas: Replicas, name: str) -> None:
    log = replicas.processes[name].log
    wait_for("ready", lambda: "ready mignodes=" in log.read_text(), context=replicas.tails)


@contextlib.contextmanager
def _ended(replicas: Replicas, leader: str, *, how: str) -> Iterator[None]:
    """Without that leader; one that was frozen goes on where it was when the block ends."""
    process = replicas.processes[leader]
    if how == "frozen":
        with replicas.frozen(leader):
            yield
        lost = f"{leader} no longer leads"
        wait_for(lost, lambda: lost in process.log.read_text(), context=replicas.tails)
        return
    if how == "killed":
        process.kill()
    else:
        assert process.stop() == 0
    yield


# -- the checker of the churn tests sees what must not be, whoever allocated it


DRIVER_NAME = "mig.dra.dev"


def event(what: str, name: str, *devices: str, node: str = "a", driver: str = DRIVER_NAME) -> Any:
    fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
    results = [{"request": "r", "driver": driver, "pool": node, "device": d} for d in devices]
    allocation = {
        "devices": {"results": results},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": fields}]},
    }
    status = {"allocation": allocation} if devices else {}
    return {"type": what, "object": {"metadata": {"uid": name, "name": name}, "status": status}}


FIRST = event("MODIFIED", "first", "gpu-0-mig-3g20gb-9-4")


@pytest.mark.parametrize(
    "second",
    [
        event("MODIFIED", "second", "gpu-0-mig-3g20gb-9-4"),
        event("MODIFIED", "second", "gpu-0-mig-7g40gb-0-0"),
        event("MODIFIED", "second", "gpu-0-mig-1g5gb-me-20-6"),
        event("ADDED", "second", "gpu-1-mig-1g5gb-19-0", "gpu-0-mig-2g10gb-14-4"),
        event("ADDED", "second", "gpu-1-mig-1g10gb-15-0", "gpu-1-mig-1g5gb-19-1"),
    ],
)
def test_what_overlaps_is_seen(second: Any) -> None:
    ledger = Ledger(DRIVER_NAME)
    ledger.enter(FIRST)
    ledger.enter(second)
    assert len(ledger.overlaps) == 1
    assert "second" in ledger.overlaps[0]
