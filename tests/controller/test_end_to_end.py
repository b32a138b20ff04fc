"""The controller as a process, against the embedded API server as a process."""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra.inventory import Gpu, Instance
from dra.kube.errors import NotFoundError
from dra.kube.resources import (
    CUSTOM_RESOURCE_DEFINITIONS,
    DEVICE_CLASSES,
    EVENTS,
    LEASES,
    MIG_NODES,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
)
from dra.kube.transport import KubeApi
from tests.controller.objects import (
    FINALIZER,
    claim,
    gpu,
    instance,
    mignode,
    node,
    pod,
    request,
)

Obj = dict[str, Any]
NAMESPACE = "mig-dra-driver"
_log = logging.getLogger(__name__)
CRD = Path(__file__).parents[2] / "api/crds/mignodes.yaml"


def eventually(condition: Callable[[], object], what: str, *, timeout: float = 20.0) -> float:
    """Wait until it holds; returns the seconds that it took."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < timeout, f"no {what} within {timeout} s"
        time.sleep(0.002)
    return time.monotonic() - started


class Site:
    """An API server with nodes, and controllers beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kubeconfig = folder / "kubeconfig"
        command = [sys.executable, "-m", "sim", "apiserver", "--kubeconfig-out"]
        self.server = subprocess.Popen([*command, str(self.kubeconfig)], stdout=subprocess.DEVNULL)
        eventually(self.kubeconfig.exists, "kubeconfig")
        self.api = KubeApi.connect(str(self.kubeconfig), user_agent="test")
        self.api.create(CUSTOM_RESOURCE_DEFINITIONS, yaml.safe_load(CRD.read_text()))
        self.api.create(
            NAMESPACES,
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        )
        self.controllers: list[subprocess.Popen[bytes]] = []

    def add_node(self, name: str, *gpus: Gpu) -> None:
        body = node(name)
        self.api.create(NODES, {k: v for k, v in body.items() if k != "status"})
        self.api.patch(NODES, name, {"status": body["status"]}, subresource="status")
        body = mignode(name, *gpus)
        bare = {**body, "metadata": {"name": name}}
        self.api.create(MIG_NODES, {k: v for k, v in bare.items() if k != "status"})
        self.show(name, *gpus)

    def show(self, name: str, *gpus: Gpu) -> None:
        """The node's plugin reports its GPUs."""
        status = mignode(name, *gpus)["status"]
        self.api.patch(MIG_NODES, name, {"status": status}, subresource="status")

    def start(self, *flags: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "controller", "--kubeconfig", str(self.kubeconfig)]
        log = (self.folder / f"controller-{len(self.controllers)}.log").open("wb")
        with log:
            started = subprocess.Popen([*command, *flags], stderr=log)
        self.controllers.append(started)
        return started

    def logs(self) -> str:
        return "\n".join(p.read_text() for p in sorted(self.folder.glob("controller-*.log")))

    def wait_classes(self) -> None:
        eventually(lambda: self.find(DEVICE_CLASSES, "mig-7g.40gb", ""), "classes", timeout=40)

    def find(self, resource: Any, name: str, namespace: str = "default") -> Obj | None:
        with contextlib.suppress(NotFoundError):
            return self.api.get(resource, name, namespace=namespace)
        return None

    def claim(self, name: str, *requests: Obj) -> None:
        self.api.create(RESOURCE_CLAIMS, claim(name, *requests))

    def pod(self, name: str, *claims: str, **spec: Any) -> None:
        self.api.create(PODS, pod(name, *claims, **spec))

    def allocation(self, name: str) -> Obj | None:
        found = self.api.get(RESOURCE_CLAIMS, name, namespace="default")
        allocation: Obj | None = (found.get("status") or {}).get("allocation")
        return allocation

    def node_of(self, name: str) -> str:
        allocation = self.allocation(name)
        if allocation is None:
            return ""
        (term,) = allocation["nodeSelector"]["nodeSelectorTerms"]
        return str(term["matchFields"][0]["values"][0])

    def held(self) -> list[tuple[str, str]]:
        """(node, device) of everything that is allocated."""
        claims = [c["metadata"]["name"] for c in self.api.list(RESOURCE_CLAIMS).items]
        return [
            (self.node_of(name), result["device"])
            for name in claims
            for result in (self.allocation(name) or {"devices": {"results": []}})["devices"][
                "results"
            ]
        ]

    def writes(self) -> Counter[str]:
        """Writes by verb and resource so far, without those of the lease."""
        url = yaml.safe_load(self.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
        with urllib.request.urlopen(f"{url}/debug/writes", timeout=5) as answer:
            counted: dict[str, int] = json.load(answer)["requests"]
        reads = ("get ", "list ", "watch ")
        return Counter(
            {
                k: v
                for k, v in counted.items()
                if LEASES.plural not in k and not k.lower().startswith(reads)
            }
        )

    def close(self) -> None:
        for process in [*self.controllers, self.server]:
            process.kill()
            process.wait()
        self.api.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    running = Site(tmp_path)
    try:
        yield running
    finally:
        running.close()
        sys.stderr.write(running.logs())  # shown for tests that fail


@pytest.fixture
def served(site: Site) -> Site:
    """Two nodes with one A100 each and one controller without election."""
    for name in ("node-a", "node-b"):
        site.add_node(name)
    site.start("--no-leader-elect")
    site.wait_classes()
    return site


def test_a_claim_is_allocated_soon_after_its_pod_is_made(served: Site) -> None:
    taken = []
    for number in range(8):
        name = f"c{number}"
        served.claim(name)
        served.pod(name, name)
        taken.append(eventually(lambda n=name: served.allocation(n), "allocation"))  # type: ignore[misc]
    taken.sort()
    _log.info("pod made to claim allocated: median %.0f ms of %d", taken[4] * 1000, len(taken))
    assert taken[4] < 1.0
    assert len(set(served.held())) == 8
    eventually(
        lambda: any(
            e["reason"] == "Allocated" and e["involvedObject"]["name"] == "c0"
            for e in served.api.list(EVENTS, namespace="default").items
        ),
        "event",
    )


def test_an_allocation_that_is_taken_back_is_made_on_another_node(served: Site) -> None:
    served.claim("c")
    served.pod("p", "c")
    eventually(lambda: served.allocation("c"), "allocation")
    first = served.node_of("c")
    served.api.patch(
        RESOURCE_CLAIMS,
        "c",
        {"status": {"allocation": None}},
        namespace="default",
        subresource="status",
    )
    eventually(lambda: served.node_of("c") not in ("", first), "allocation elsewhere")


def test_two_pods_share_a_claim_until_the_last_of_them_goes(served: Site) -> None:
    served.claim("c")
    served.pod("p1", "c")
    served.pod("p2", "c")
    eventually(lambda: served.allocation("c"), "allocation")
    served.api.delete(PODS, "p1", namespace="default", grace_seconds=0)
    served.claim("other")
    served.pod("q", "other")
    eventually(lambda: served.allocation("other"), "allocation of another")
    assert served.allocation("c")
    served.api.delete(PODS, "p2", namespace="default", grace_seconds=0)
    eventually(lambda: served.allocation("c") is None, "deallocation")


def test_a_deleted_claim_goes_when_its_node_shows_no_slice_of_it(served: Site) -> None:
    served.claim("c", request("r", "mig-7g.40gb"))
    served.pod("p", "c")
    eventually(lambda: served.allocation("c"), "allocation")
    home = served.node_of("c")
    uid = served.api.get(RESOURCE_CLAIMS, "c", namespace="default")["metadata"]["uid"]
    shown: Instance = instance("7g.40gb", 0, uid=uid)
    served.show(home, gpu(0, home, instances=(shown,)))
    served.api.delete(PODS, "p", namespace="default", grace_seconds=0)
    served.api.delete(RESOURCE_CLAIMS, "c", namespace="default")
    # Another decision, made after the controller has seen both deletions.
    served.claim("later")
    served.pod("q", "later")
    eventually(lambda: served.allocation("later"), "allocation of another")
    found = served.find(RESOURCE_CLAIMS, "c")
    assert found is not None
    assert found["metadata"]["finalizers"] == [FINALIZER]
    served.show(home, gpu(0, home))
    eventually(lambda: served.find(RESOURCE_CLAIMS, "c") is None, "end of the claim")


def test_a_pod_that_must_wait_is_told_why_and_gets_what_another_leaves(served: Site) -> None:
    for name in ("c0", "c1", "c2"):
        served.claim(name, request("r", "mig-7g.40gb"))
        served.pod(name, name)
        if name != "c2":
            eventually(lambda n=name: served.allocation(n), "allocation")  # type: ignore[misc]

    def told() -> list[str]:
        events = served.api.list(EVENTS, namespace="default").items
        return [
            e["message"]
            for e in events
            if e["involvedObject"]["name"] == "c2" and e["reason"] == "WaitingForSlice"
        ]

    eventually(told, "reason")
    assert "no room for 7g.40gb (blocked by claim default/c" in told()[0]
    served.api.delete(PODS, "c0", namespace="default", grace_seconds=0)
    eventually(lambda: served.allocation("c2"), "allocation")


def test_a_gate_is_lifted_once_the_claim_is_allocated(served: Site) -> None:
    served.claim("c")
    served.pod("p", "c", schedulingGates=[{"name": FINALIZER}])

    def gates() -> list[Obj]:
        spec = served.api.get(PODS, "p", namespace="default")["spec"]
        found: list[Obj] = spec.get("schedulingGates") or []
        return found

    eventually(lambda: not gates(), "open gate")
    assert served.allocation("c")


def test_at_rest_and_after_a_restart_nothing_is_written(served: Site) -> None:
    for number in range(3):
        served.claim(f"c{number}")
        served.pod(f"p{number}", f"c{number}")
        eventually(lambda n=f"c{number}": served.allocation(n), "allocation")  # type: ignore[misc]
    (controller,) = served.controllers
    controller.send_signal(signal.SIGTERM)  # which also sends what events are left
    assert controller.wait(10) == 0
    before = served.writes()
    assert before["patch resourceclaims.resource.k8s.io/status"] == 3
    served.start("--no-leader-elect")
    eventually(lambda: served.logs().count("ready mignodes=2 pods=3 claims=3") == 1, "restart")
    served.claim("no-pod-wants-it")
    again = served.controllers[-1]
    again.send_signal(signal.SIGTERM)
    assert again.wait(10) == 0
    written = served.writes() - before
    assert {k: v for k, v in written.items() if "create resourceclaims" not in k} == {}


def test_a_second_controller_takes_over_without_allocating_anything_twice(site: Site) -> None:
    for name in ("node-a", "node-b", "node-c"):
        site.add_node(name, gpu(0, name), gpu(1, name))
    leader = site.start()
    site.wait_classes()
    site.start()
    count = 30
    for number in range(count):
        site.claim(f"c{number}")
        site.pod(f"p{number}", f"c{number}")
        if number == count // 2:
            eventually(lambda: site.allocation("c3"), "first allocations")
            leader.kill()
    eventually(lambda: all(site.allocation(f"c{n}") for n in range(count)), "takeover", timeout=60)
    held = site.held()
    assert len(held) == count
    assert len(set(held)) == count
    assert "leads" in (site.folder / "controller-1.log").read_text()


def test_without_a_kubeconfig_it_says_so_and_ends(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "controller", "--kubeconfig", str(tmp_path / "none")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 2
    assert "no access to a Kubernetes API" in ended.stderr
    assert "Traceback" not in ended.stderr
