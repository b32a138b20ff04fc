"""The controller as a process, against the embedded API server as a process."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from dra.common.resources import RESOURCE_CLAIMS, Obj
from tests.controller.helpers.objects import FINALIZER, gpu
from tests.controller.helpers.site import Site
from tests.helpers.waiting import PATIENCE, wait_for


def serve(site: Site) -> Site:
    """Two nodes with one A100 each and one controller without election."""
    for name in ("node-a", "node-b"):
        site.add_node(name)
    site.start("--no-leader-elect")
    site.wait_classes()
    return site


def test_at_rest_and_after_a_restart_nothing_is_written(site: Site) -> None:
    at_first, served = site.writes(), serve(site)
    for number in range(3):
        served.claim(f"c{number}")
        served.pod(f"p{number}", f"c{number}")
        wait_for("allocation", lambda n=f"c{number}": served.allocation(n))  # type: ignore[misc]
    (controller,) = served.controllers
    controller.send_signal(signal.SIGTERM)  # which also sends what events are left
    assert controller.wait(PATIENCE) == 0
    before = served.writes()
    assert (before - at_first)["patch resourceclaims.resource.k8s.io/status"] == 3
    served.start("--no-leader-elect")
    wait_for("restart", lambda: served.logs().count("ready mignodes=2 pods=3 claims=3") == 1)
    served.claim("no-pod-wants-it")
    again = served.controllers[-1]
    again.send_signal(signal.SIGTERM)
    assert again.wait(PATIENCE) == 0
    written = served.writes() - before
    assert {k: v for k, v in written.items() if "create resourceclaims" not in k} == {}


def test_leaders_that_hand_over_or_die_give_nothing_out_twice(site: Site) -> None:
    for name in ("node-a", "node-b", "node-c"):
        site.add_node(name, gpu(0, name), gpu(1, name))
    names = [f"waits-{number}" for number in range(5)]
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
        return "ready mignodes=3" in (site.folder / f"controller-{number}.log").read_text()

    first = site.start()
    wait_for("the first leader", lambda: ready(0))
    every = marks()
    second = site.start()
    first.send_signal(signal.SIGTERM)
    assert first.wait(PATIENCE) == 0
    wait_for("the second leader", lambda: ready(1))
    every |= marks()
    site.start()
    count = 30
    for number in range(count):
        site.claim(f"c{number}")
        site.pod(f"p{number}", f"c{number}")
        if number == count // 2:
            wait_for("first allocations", lambda: site.allocation("c3"))
            site.crash(second)
    wait_for("takeover", lambda: all(site.allocation(f"c{n}") for n in range(count)))
    held = site.held()
    assert len(held) == count
    assert len(set(held)) == count
    assert len({"None", *every, *marks()}) == 4, "each leader has fenced them"


def test_without_a_kubeconfig_it_says_so_and_ends(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "controller", "--kubeconfig", str(tmp_path / "none")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ended.returncode == 2
    assert "no access to a Kubernetes API" in ended.stderr
    assert "Traceback" not in ended.stderr
