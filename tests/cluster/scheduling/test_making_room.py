"""Room by moving and ending pods on a real control plane, with budgets and leaders that die."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dra.common.resources import Obj
from hack.cluster.api import Api, ApiError
from hack.cluster.binaries import Binaries
from hack.cluster.controlplane import ADMIN, ControlPlane
from sim.processes import wait_for
from tests.cluster.harness.daemons import DRIVER
from tests.cluster.harness.ground import served_plane
from tests.cluster.harness.pods import pod
from tests.cluster.harness.standins import StandIns
from tests.cluster.harness.watcher import Watcher
from tests.cluster.harness.workload import SLEEPING
from tests.cluster.scheduling.churn import Churn
from tests.cluster.scheduling.replicas import Replicas
from tests.controller.helpers.objects import gpu, inventory

NODES = tuple(f"fake-room-{n}" for n in range(3))
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def control_plane(binaries: Binaries, root: Path) -> Iterator[ControlPlane]:
    with served_plane(binaries, root / "room") as found:
        Churn(found.api, slots=1, seed=1).prepare()
        yield found


@dataclass
class Site:
    """Nodes with one GPU each, and pods of ReplicaSets by the names of these."""

    api: Api
    kubeconfig: Path
    replicas: Replicas
    ended: list[str] = field(default_factory=list)
    """UIDs of pods that were told to end, in their order."""
    reasons: dict[str, str] = field(default_factory=dict)
    """By UID why, as their condition tells."""

    def see(self, event: Obj) -> None:
        """A pod that is bound runs; note one that ends."""
        seen = event["object"]
        metadata, status = seen["metadata"], seen.get("status") or {}
        for each in status.get("conditions") or ():
            if each["type"] == "DisruptionTarget":
                self.reasons[metadata["uid"]] = each["reason"]
        if "deletionTimestamp" in metadata:
            if metadata["uid"] not in self.ended:
                self.ended.append(metadata["uid"])
        elif seen["spec"].get("nodeName") and status.get("phase") == "Pending":
            ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
            with contextlib.suppress(ApiError):
                self.api.patch("Pod", metadata["name"], {"status": ready}, subresource="status")

    def runs(self, name: str, size: str, where: str, *, movable: bool = True) -> str:
        """One pod of a ReplicaSet, placed on a node, but able to run on each; its UID."""
        for other in NODES:
            self.api.patch("Node", other, {"spec": {"unschedulable": other != where}})
        labels = {"app": name, **({f"{DRIVER}/movable": "true"} if movable else {})}
        claims = {"gpu": {"resourceClaimTemplateName": size}}
        spec = pod(name, SLEEPING, claims=claims, terminationGracePeriodSeconds=30)["spec"]
        template = {"metadata": {"labels": labels}, "spec": {**spec, "restartPolicy": "Always"}}
        selector = {"matchLabels": {"app": name}}
        body = {"replicas": 1, "selector": selector, "template": template}
        metadata = {"name": name}
        self.api.create(
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata, "spec": body}
        )
        (made,) = self.wait(name, lambda: self.running(name))
        for other in NODES:
            self.api.patch("Node", other, {"spec": {"unschedulable": None}})
        return str(made["metadata"]["uid"])

    def running(self, name: str) -> list[Obj]:
        """Pods of a ReplicaSet that run and are not told to end."""
        found = self.api.list("Pod", labelSelector=f"app={name}")
        alive = [p for p in found if "deletionTimestamp" not in p["metadata"]]
        return [p for p in alive if p["status"].get("phase") == "Running"]

    def asks(self, name: str, size: str, **spec: Any) -> None:
        claims = {"gpu": {"resourceClaimTemplateName": size}}
        self.api.create(pod(name, SLEEPING, claims=claims, **spec))
        self.wait(f"word to {name}", lambda: self.told(name, "WaitingForSlice"))

    def node(self, name: str) -> str:
        return str((self.api.find("Pod", name) or {"spec": {}})["spec"].get("nodeName") or "")

    def told(self, name: str, reason: str) -> list[str]:
        events = self.api.list("Event", fieldSelector=f"involvedObject.name={name}")
        return [e["message"] for e in events if e["reason"] == reason]

    def protect(self, name: str) -> None:
        """A budget that lets no pod of a ReplicaSet be evicted."""
        spec = {"maxUnavailable": 0, "selector": {"matchLabels": {"app": name}}}
        body = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "spec": spec}
        self.api.request("POST", BUDGETS, body={**body, "metadata": {"name": name}})

        def counted() -> bool:
            found = self.api.request("GET", f"{BUDGETS}/{name}").get("status") or {}
            return found.get("currentHealthy") == 1 and found.get("disruptionsAllowed") == 0

        self.wait(f"budget {name}", counted)

    def defrag(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "cli", "defrag", *arguments],
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def wait(self, what: str, reached: Callable[[], Any], timeout: float = 90.0) -> Any:
        return wait_for(what, reached, timeout=timeout, context=self.replicas.tails)

    def clear(self) -> None:
        for each in self.api.request("GET", BUDGETS)["items"]:
            self.api.request("DELETE", f"{BUDGETS}/{each['metadata']['name']}")
        for each in self.api.list("ReplicaSet"):
            self.api.delete("ReplicaSet", each["metadata"]["name"])
        for each in self.api.list("Pod"):
            self.api.delete("Pod", each["metadata"]["name"])

        def owned() -> list[Obj]:
            found = self.api.list("ResourceClaim")
            return [c for c in found if c["metadata"].get("ownerReferences")]

        self.wait("end of all", lambda: not owned())


@contextlib.contextmanager
def site_on(
    control_plane: ControlPlane, logs: Path, *identities: str, flags: tuple[str, ...] = ()
) -> Iterator[Site]:
    api = control_plane.api
    for name in NODES:
        api.delete("MigNode", name)
        api.delete("Node", name)
    nodes = StandIns(api, [inventory(n, gpu(0, n)) for n in NODES])
    replicas = Replicas(control_plane, logs, *identities, flags=flags)
    site = Site(api, control_plane.kubeconfig(ADMIN), replicas)
    with Watcher(api, "Pod", nodes.pod), Watcher(api, "Pod", site.see), nodes, replicas:
        wait_for("classes", lambda: api.find("DeviceClass", "mig-7g.40gb") is not None)
        try:
            yield site
        finally:
            site.clear()
        assert nodes.collisions == []


def _either(reached: Callable[[], object], ran: subprocess.Popen[str]) -> object:
    return reached() or ran.poll() is not None


def crowd(site: Site) -> dict[str, str]:
    """A pod that may not be moved on one node, two that may on the next, a large one; by name."""
    return {
        "stays": site.runs("stays", "small", NODES[0], movable=False),
        "one": site.runs("one", "small", NODES[1]),
        "two": site.runs("two", "small", NODES[1]),
        "large": site.runs("large", "third", NODES[2], movable=False),
    }


def test_pods_that_allow_it_are_moved_and_no_others(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    with site_on(control_plane, tmp_path, "alone") as site:
        before = crowd(site)
        site.asks("big", "whole")
        ran = site.defrag("-p", "7g.40gb", "--execute", "--timeout", "120")
        said, _ = ran.communicate(timeout=150)
        print(said)  # noqa: T201 - what a user sees
        assert ran.returncode == 0, said
        assert site.node("big") == NODES[1]
        assert sorted(site.ended) == sorted([before["one"], before["two"]])
        for name in ("one", "two"):
            (moved,) = site.wait(name, partial(site.running, name))
            assert moved["spec"]["nodeName"] != NODES[1]
        assert said.count("is moved for it") == 2
        assert f"pod default/big has gpu-0-mig-7g40gb-0-0 on node {NODES[1]}" in said


def test_a_budget_that_forbids_one_of_the_moves_ends_it_and_nothing_is_held_back(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    with site_on(control_plane, tmp_path, "alone") as site:
        before = crowd(site)
        site.protect("two")
        site.asks("big", "whole")
        ran = site.defrag("-p", "7g.40gb", "--execute", "--timeout", "120")
        said, _ = ran.communicate(timeout=150)
        print(said)  # noqa: T201 - what a user sees
        assert ran.returncode == 1, said
        assert "stopped: " in said
        assert "disruption budget" in said
        assert {*site.ended} <= {before["one"]}
        site.runs("other", "third", NODES[1])


def test_leaders_that_die_between_the_steps_leave_nothing_half_done(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    """One dies once it was asked, one after each eviction, and one when a pod was replaced."""
    with site_on(control_plane, tmp_path, *"abcde") as site:
        before = crowd(site)
        site.asks("big", "whole")
        ran = site.defrag("-p", "7g.40gb", "--execute", "--timeout", "400")

        def is_asked() -> bool:
            metadata = site.api.get("MigNode", NODES[1])["metadata"]
            return f"{DRIVER}/defrag" in (metadata.get("annotations") or {})

        steps: list[tuple[str, Callable[[], object]]] = [
            ("request", is_asked),
            ("first eviction", lambda: site.ended),
            ("the next", lambda: len(site.ended) > 1 or site.node("big")),
        ]
        killed = 0
        for what, reached in steps:
            site.wait(what, partial(_either, reached, ran), 200)
            leader = site.replicas.wait_for_leader()
            site.replicas.processes[leader].kill()
            killed += 1
            site.replicas.wait_for_leader(other_than=leader)
        said, _ = ran.communicate(timeout=420)
        print(said)  # noqa: T201 - what a user sees
        assert killed == 3
        assert {*site.ended} & {before["stays"], before["large"]} == set()
        if ran.returncode == 0:
            assert site.node("big") == NODES[1]
        else:
            assert "stopped: " in said
        for name in before:
            site.wait(name, partial(site.running, name))
        site.api.delete("Pod", "big")
        # What is free has others at once: the rest of the GPUs takes as many as fit there.
        for number in range(3):
            claims = {"gpu": {"resourceClaimTemplateName": "third"}}
            site.api.create(pod(f"after-{number}", SLEEPING, claims=claims))
        for number in range(3):
            site.wait("room for others", partial(site.node, f"after-{number}"))


def test_pods_of_lower_priority_end_with_the_least_that_is_protected_last(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    with site_on(control_plane, tmp_path, "alone", flags=("--preemption",)) as site:
        uids = {
            name: site.runs(name, size, node, movable=False)
            for name, size, node in (
                ("low", "whole", NODES[0]),
                ("free", "whole", NODES[1]),
                ("safe", "whole", NODES[2]),
            )
        }
        site.protect("low")
        site.protect("safe")
        site.asks("urgent", "whole", priorityClassName="system-cluster-critical")
        site.wait("room for the urgent one", lambda: site.node("urgent"))
        assert site.ended == [uids["free"]]
        assert site.reasons[uids["free"]] == "EvictionByEvictionAPI"
        site.asks("second", "whole", priorityClassName="system-cluster-critical")
        site.wait("room for the second", lambda: site.node("second"))
        assert len(site.ended) == 2
        last = site.ended[1]
        assert last in {uids["low"], uids["safe"]}
        assert site.reasons[last] == "PreemptedForSlice"
        for name in ("urgent", "second"):
            site.wait(f"the event of {name}", partial(site.told, name, "MakingRoom"))
            assert not site.told(name, "RoomNotMade")
