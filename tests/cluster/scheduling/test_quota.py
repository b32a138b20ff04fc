"""A quota on a real control plane: 200 pods at once, and a leader that is killed midway."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dra.common.resources import Obj
from hack.cluster.api import Api
from hack.cluster.binaries import Binaries
from hack.cluster.controlplane import ControlPlane
from sim.processes import wait_for
from tests.cluster.harness.ground import served_plane
from tests.cluster.harness.pods import pod
from tests.cluster.harness.standins import StandIns
from tests.cluster.harness.watcher import Watcher
from tests.cluster.harness.workload import SLEEPING
from tests.cluster.scheduling.churn import Churn
from tests.cluster.scheduling.replicas import Replicas
from tests.controller.helpers.objects import gpu, inventory

PODS, LIMIT = 200, 20
CLASS = "mig-1g.5gb"
NODES = tuple(f"fake-quota-{n}" for n in range(3))
GPUS = 3
"""Room for 63 slices, three times what the namespace may hold."""


@dataclass
class Account:
    """Claims of the class that hold slices, by every event of a watch."""

    held: set[str] = field(default_factory=set)
    served: set[str] = field(default_factory=set)
    most: int = 0

    def enter(self, event: Obj) -> None:
        claim = event["object"]
        uid = claim["metadata"]["uid"]
        if event["type"] != "DELETED" and (claim.get("status") or {}).get("allocation"):
            self.held.add(uid)
            self.served.add(uid)
        else:
            self.held.discard(uid)
        self.most = max(self.most, len(self.held))


@pytest.fixture(scope="module")
def control_plane(binaries: Binaries, root: Path) -> Iterator[ControlPlane]:
    with served_plane(binaries, root / "quota") as found:
        yield found


def _limit(api: Api) -> None:
    wait_for("class", lambda: api.find("DeviceClass", CLASS) is not None)
    annotations = {"mig.dra.dev/devices-per-namespace": str(LIMIT)}
    api.patch("DeviceClass", CLASS, {"metadata": {"annotations": annotations}})


@pytest.mark.timeout(600)
def test_two_hundred_pods_at_once_are_never_over_it_while_the_leader_is_killed(
    control_plane: ControlPlane, root: Path
) -> None:
    api, account = control_plane.api, Account()
    nodes = StandIns(api, [inventory(n, *(gpu(m, n) for m in range(GPUS))) for n in NODES])
    Churn(api, slots=1, seed=1).prepare()
    with (
        Watcher(api, "ResourceClaim", account.enter),
        Watcher(api, "Pod", nodes.pod),
        nodes,
        Replicas(control_plane, root, "a", "b") as replicas,
        ThreadPoolExecutor(8) as pool,
    ):
        _limit(api)
        first = replicas.wait_for_leader()
        claims = {"gpu": {"resourceClaimTemplateName": "small"}}
        made = [
            pool.submit(api.create, pod(f"q-{n:03}", SLEEPING, claims=claims)) for n in range(PODS)
        ]
        wait_for("first allocations", lambda: account.served, timeout=120, context=replicas.tails)
        replicas.processes[first].kill()
        for each in made:
            each.result()
        replicas.wait_for_leader(other_than=first)
        is_used = f"{LIMIT} claims that hold slices"
        wait_for(
            is_used,
            lambda: len(account.held) == LIMIT,
            timeout=120,
            context=lambda: f"{len(account.held)} hold some\n{replicas.tails()}",
        )

        def told() -> str:
            events = [e for e in api.list("Event") if e["reason"] == "WaitingForQuota"]
            return str(events[0]["message"]) if events else ""

        assert f"default holds {LIMIT} devices" in wait_for(
            "word", told, timeout=120, context=replicas.tails
        )
        deleted: set[str] = set()

        def all_served() -> bool:
            nodes.check()
            for each in api.list("Pod"):
                if each["spec"].get("nodeName") and each["metadata"]["uid"] not in deleted:
                    deleted.add(each["metadata"]["uid"])
                    api.delete("Pod", each["metadata"]["name"])
            return len(account.served) >= PODS and not api.list("Pod")

        wait_for("service of all", all_served, timeout=240, interval=0.3, context=replicas.tails)
    assert account.most == LIMIT
