"""The controller as a process, against the embedded API server as a process."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dra.common.resources import EVENTS, PODS, RESOURCE_CLAIMS, Obj
from dra.gpu.inventory import Instance
from dra.kube.errors import ConflictError
from tests.controller.helpers.objects import FINALIZER, allocated, gpu, instance, request
from tests.controller.helpers.site import Site
from tests.helpers.waiting import PATIENCE, wait_for


@pytest.fixture
def served(site: Site) -> Site:
    return serve(site)


def serve(site: Site) -> Site:
    """Two nodes with one A100 each and one controller without election."""
    for name in ("node-a", "node-b"):
        site.add_node(name)
    site.start("--no-leader-elect")
    site.wait_classes()
    return site


def test_a_claim_is_allocated_once_its_pod_is_made(served: Site) -> None:
    for number in range(8):
        name = f"c{number}"
        served.claim(name)
        served.pod(f"pod-{name}", name)
        wait_for("allocation", lambda n=name: served.allocation(n))  # type: ignore[misc]
    assert len(set(served.held())) == 8
    wait_for(
        "event",
        lambda: any(
            e["reason"] == "Allocated" and e["involvedObject"]["name"] == "pod-c0"
            for e in served.api.list(EVENTS, namespace="default").items
        ),
    )


def test_an_allocation_that_is_taken_back_is_made_on_another_node(served: Site) -> None:
    served.claim("c")
    served.pod("p", "c")
    wait_for("allocation", lambda: served.allocation("c"))
    first = served.node_of("c")
    served.api.patch(
        RESOURCE_CLAIMS,
        "c",
        {"status": {"allocation": None, "reservedFor": None}},
        namespace="default",
        subresource="status",
    )
    wait_for("allocation elsewhere", lambda: served.node_of("c") not in ("", first))


def test_two_pods_share_a_claim_until_the_last_of_them_goes(served: Site) -> None:
    served.claim("c")
    served.pod("p1", "c")
    served.pod("p2", "c")
    wait_for("allocation", lambda: served.allocation("c"))
    served.api.delete(PODS, "p1", namespace="default", grace_seconds=0)
    served.claim("other")
    served.pod("q", "other")
    wait_for("allocation of another", lambda: served.allocation("other"))
    assert served.allocation("c")
    served.api.delete(PODS, "p2", namespace="default", grace_seconds=0)
    wait_for("deallocation", lambda: served.allocation("c") is None)


def test_a_deleted_claim_goes_when_its_node_shows_no_slice_of_it(served: Site) -> None:
    for name in ("c", "beside", "waits"):
        served.claim(name, request("r", "mig-7g.40gb"))
        served.pod(name, name)
        if name != "waits":
            wait_for("allocation", lambda n=name: served.allocation(n))  # type: ignore[misc]
    home = served.node_of("c")
    uid = served.api.get(RESOURCE_CLAIMS, "c", namespace="default")["metadata"]["uid"]
    shown: Instance = instance("7g.40gb", 0, uid=uid)
    served.show(home, gpu(0, home, instances=(shown,)), gpu(1, home))
    # Only with the GPU that is shown together with the slice can this be decided.
    wait_for("allocation on the second GPU", lambda: served.allocation("waits"))
    served.api.delete(PODS, "c", namespace="default", grace_seconds=0)
    served.api.delete(RESOURCE_CLAIMS, "c", namespace="default")
    # And this only after both deletions.
    served.claim("later")
    served.pod("later", "later")
    served.show(home, gpu(0, home, instances=(shown,)), gpu(1, home), gpu(2, home))
    wait_for("allocation of another", lambda: served.allocation("later"))
    found = served.find(RESOURCE_CLAIMS, "c")
    assert found is not None
    assert found["metadata"]["finalizers"] == [FINALIZER]
    served.show(home, gpu(0, home), gpu(1, home), gpu(2, home))
    wait_for("end of the claim", lambda: served.find(RESOURCE_CLAIMS, "c") is None)


def test_a_pod_that_must_wait_is_told_why_and_gets_what_another_leaves(served: Site) -> None:
    for name in ("c0", "c1", "c2"):
        served.claim(name, request("r", "mig-7g.40gb"))
        served.pod(name, name)
        if name != "c2":
            wait_for("allocation", lambda n=name: served.allocation(n))  # type: ignore[misc]

    def told() -> list[str]:
        events = served.api.list(EVENTS, namespace="default").items
        return [
            e["message"]
            for e in events
            if e["involvedObject"]["name"] == "c2" and e["reason"] == "WaitingForSlice"
        ]

    wait_for("reason", told)
    assert "no room for 7g.40gb (blocked by claim default/c" in told()[0]
    served.api.delete(PODS, "c0", namespace="default", grace_seconds=0)
    wait_for("allocation", lambda: served.allocation("c2"))


def test_a_gate_is_lifted_once_the_claim_is_allocated(served: Site) -> None:
    served.claim("c")
    served.pod("p", "c", schedulingGates=[{"name": FINALIZER}])

    def gates() -> list[Obj]:
        spec = served.api.get(PODS, "p", namespace="default")["spec"]
        found: list[Obj] = spec.get("schedulingGates") or []
        return found

    wait_for("open gate", lambda: not gates())
    assert served.allocation("c")


def test_at_rest_and_after_a_restart_nothing_is_written(own_site: Site) -> None:
    served = serve(own_site)
    for number in range(3):
        served.claim(f"c{number}")
        served.pod(f"p{number}", f"c{number}")
        wait_for("allocation", lambda n=f"c{number}": served.allocation(n))  # type: ignore[misc]
    (controller,) = served.controllers
    controller.send_signal(signal.SIGTERM)  # which also sends what events are left
    assert controller.wait(PATIENCE) == 0
    before = served.writes()
    assert before["patch resourceclaims.resource.k8s.io/status"] == 3
    served.start("--no-leader-elect")
    wait_for("restart", lambda: served.logs().count("ready mignodes=2 pods=3 claims=3") == 1)
    served.claim("no-pod-wants-it")
    again = served.controllers[-1]
    again.send_signal(signal.SIGTERM)
    assert again.wait(PATIENCE) == 0
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
            wait_for("first allocations", lambda: site.allocation("c3"))
            site.crash(leader)
    wait_for("takeover", lambda: all(site.allocation(f"c{n}") for n in range(count)))
    held = site.held()
    assert len(held) == count
    assert len(set(held)) == count
    assert "leads" in (site.folder / "controller-1.log").read_text()


def test_an_allocation_that_a_former_leader_sent_is_refused_once_the_next_has_decided(
    site: Site,
) -> None:
    site.add_node("node-a")
    former = site.start("--no-leader-elect")
    site.wait_classes()
    former.kill()
    former.wait()
    for name, fits in (("former", {"there": "is no such node"}), ("next", {})):
        site.claim(name, request("r", "mig-7g.40gb"))
        site.pod(name, name, nodeSelector=fits)
    ours = {"metadata": {"finalizers": [FINALIZER]}}
    stored = site.api.patch(RESOURCE_CLAIMS, "former", ours, namespace="default")
    late = allocated(stored, "node-a", "gpu-0-mig-7g40gb-0-0")

    def mark() -> str:
        metadata = site.api.get(RESOURCE_CLAIMS, "former", namespace="default")["metadata"]
        return str(metadata.get("annotations", {}).get("mig.dra.dev/fence", ""))

    site.start("--no-leader-elect")
    wait_for("allocation", lambda: site.allocation("next"))
    with pytest.raises(ConflictError):
        site.api.replace(RESOURCE_CLAIMS, late, subresource="status")
    assert site.held() == [("node-a", "gpu-0-mig-7g40gb-0-0")]
    before = mark()
    assert before
    site.controllers[-1].kill()
    site.start("--no-leader-elect")
    wait_for("another fence", lambda: mark() not in ("", before))


def test_a_clean_handover_writes_nothing_to_claims_that_wait_and_a_crash_has_them_fenced(
    site: Site,
) -> None:
    site.add_node("node-a")
    names = [f"c{number}" for number in range(5)]
    ours = {"metadata": {"finalizers": [FINALIZER]}}
    for name in names:
        site.claim(name)
        site.api.patch(RESOURCE_CLAIMS, name, ours, namespace="default")
        site.pod(name, name, nodeSelector={"there": "is no such node"})

    def waiting() -> list[Obj]:
        return [site.api.get(RESOURCE_CLAIMS, n, namespace="default") for n in names]

    def marks() -> set[str]:
        found = [c["metadata"].get("annotations", {}) for c in waiting()]
        return {str(annotations.get("mig.dra.dev/fence")) for annotations in found}

    def ready(number: int) -> bool:
        return "ready mignodes=1" in (site.folder / f"controller-{number}.log").read_text()

    first = site.start()
    wait_for("the first leader", lambda: ready(0))
    fenced = waiting()
    (mark,) = marks()
    site.start()
    first.send_signal(signal.SIGTERM)
    assert first.wait(PATIENCE) == 0
    wait_for("the second leader", lambda: ready(1))
    assert waiting() == fenced
    site.crash(site.controllers[1])
    site.start()
    wait_for("the third leader", lambda: ready(2))
    (other,) = marks()
    assert len({"None", mark, other}) == 3


def test_without_a_kubeconfig_it_says_so_and_ends(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "controller", "--kubeconfig", str(tmp_path / "none")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ended.returncode == 2
    assert "no access to a Kubernetes API" in ended.stderr
    assert "Traceback" not in ended.stderr
