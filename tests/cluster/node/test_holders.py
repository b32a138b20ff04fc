"""A slice stays while a container may use it, whatever became of the objects of claim and pod."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dra.common.resources import Obj
from hack.cluster.api import Api
from hack.cluster.containerd import IMAGE
from sim.processes import Process, wait_for
from tests.cluster.harness.agreement import Slice
from tests.cluster.harness.daemons import start_registered
from tests.cluster.harness.pods import pod
from tests.cluster.harness.stage import Stage

SOON = 75.0
"""The plugin looks at what is still held every 30 s, kubelet at claims without pods every 60 s."""

STUBBORN = ["sh", "-c", "trap '' TERM; while true; do sleep 1; done"]


@pytest.fixture
def plugin(stage: Stage) -> Iterator[Process]:
    """The node's plugin, which sees the machine's cgroups and the directory of pods' logs."""
    host = stage.driver.hardware[stage.kubelet.name].host_root
    links = {"sys/fs/cgroup": "/sys/fs/cgroup", "var/log/pods": str(stage.kubelet.pod_logs)}
    for link, target in links.items():
        (host / link).parent.mkdir(parents=True, exist_ok=True)
        (host / link).symlink_to(target)
    with stage.driver.in_place(stage.kubelet.name, "--forgotten-after", "15") as plugin:
        yield plugin
    for link in links:
        (host / link).unlink()


def strip_and_delete(api: Api, name: str) -> None:
    """Done by anybody who may edit claims."""
    api.patch("ResourceClaim", name, {"metadata": {"finalizers": None}})
    api.delete("ResourceClaim", name)

    def gone() -> bool:
        if api.find("ResourceClaim", name) is None:
            return True
        api.patch("ResourceClaim", name, {"metadata": {"finalizers": None}})
        return False

    wait_for("end of the claim", gone)


def run(stage: Stage, name: str, **spec: Any) -> Obj:
    """A pod with a claim of the same name; returns the claim."""
    claims = {"gpu": stage.workload.claim(name, device_class="mig-1g.5gb")}
    stage.workload.create(pod(name, {"main": STUBBORN}, claims=claims, **stage.where, **spec))
    stage.workload.wait_for_phase(name, "Running")
    return stage.api.get("ResourceClaim", name)


def slice_of(stage: Stage, claim: Obj) -> Slice:
    """The slice that a claim has."""
    (found,) = (s for (uid, _), s in stage.agreement.slices().items() if uid == _uid(claim))
    assert found is not None
    return found


def _uid(claim: Obj) -> str:
    return str(claim["metadata"]["uid"])


def exists(stage: Stage, made: Slice) -> bool:
    """True while the hardware has it."""
    return made.key in {gi.key for gi in stage.agreement.machine.gpu().gpu_instances}


def told(stage: Stage, claim: Obj) -> list[str]:
    """Messages of events of a claim that say who holds its slice."""
    return [
        event["message"]
        for event in stage.api.list("Event")
        if event["involvedObject"].get("uid") == _uid(claim) and event["reason"] == "SliceInUse"
    ]


def assert_kept(stage: Stage, claim: Obj, made: Slice, *, holder: str) -> None:
    """The plugin looks, says who holds the slice, and keeps it from others."""
    wait_for(
        "word on the holder",
        lambda: told(stage, claim) or not exists(stage, made),
        timeout=SOON,
        context=stage.workload.describe,
    )
    assert exists(stage, made), stage.workload.describe()
    assert any(f"default/{holder}" in text for text in told(stage, claim))
    others = [run(stage, f"other-{n}") for n in range(2)]
    assert made.start not in {slice_of(stage, each).start for each in others}


def assert_given_back(stage: Stage, made: Slice) -> None:
    wait_for(
        "end of the slice",
        lambda: not exists(stage, made),
        timeout=SOON,
        context=stage.workload.describe,
    )


def look_again(stage: Stage, plugin: Process) -> None:
    """Have the plugin look at its claims at once, as it does every five minutes."""
    plugin.kill()
    start_registered(plugin)


def lose_journal(stage: Stage, plugin: Process) -> None:
    plugin.kill()
    for each in stage.driver.state(stage.kubelet.name).glob("journal*"):
        each.unlink()
    start_registered(plugin)


def recreate(stage: Stage, plugin: Process) -> None:
    """The claim is there again, under its name, for another pod."""
    stage.workload.claim("held", device_class="mig-1g.5gb")
    look_again(stage, plugin)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("then", [look_again, recreate])
def test_a_claim_without_finalizers_is_deleted_under_a_running_pod(
    stage: Stage, plugin: Process, then: Callable[[Stage, Process], None]
) -> None:
    claim = run(stage, "held")
    made = slice_of(stage, claim)
    strip_and_delete(stage.api, "held")
    then(stage, plugin)
    assert_kept(stage, claim, made, holder="held")
    stage.api.delete("Pod", "held")
    assert_given_back(stage, made)


@pytest.mark.timeout(400)
def test_only_an_init_container_has_the_slice(stage: Stage, plugin: Process) -> None:
    claims = {"gpu": stage.workload.claim("init", device_class="mig-1g.5gb")}
    body = pod("init", {"main": STUBBORN}, claims=claims, **stage.where)
    first = body["spec"]["containers"][0]
    body["spec"]["initContainers"] = [{**first, "name": "first"}]
    body["spec"]["containers"] = [{"name": "main", "image": IMAGE, "command": ["true"]}]
    stage.workload.create(body)

    def begun() -> bool:
        status = stage.api.get("Pod", "init")["status"]
        return any("running" in s["state"] for s in status.get("initContainerStatuses", ()))

    wait_for("init container", begun, context=stage.workload.describe)
    claim = stage.api.get("ResourceClaim", "init")
    made = slice_of(stage, claim)
    strip_and_delete(stage.api, "init")
    look_again(stage, plugin)
    assert_kept(stage, claim, made, holder="init")
    stage.api.delete("Pod", "init")
    assert_given_back(stage, made)


@contextlib.contextmanager
def frozen(stage: Stage, uid: str) -> Iterator[None]:
    """A pod whose processes do not end when killed, as in a call of a driver that hangs."""
    if stage.kubelet.cgroup.unified:
        pytest.skip("what is frozen can be killed by version 2 of cgroups")
    (freezer,) = (d for d in stage.kubelet.cgroup.directories() if "/freezer/" in d)
    (folder,) = Path(freezer).rglob(f"pod{uid}")
    (folder / "freezer.state").write_text("FROZEN")
    try:
        yield
    finally:
        (folder / "freezer.state").write_text("THAWED")


@pytest.mark.timeout(400)
def test_a_pod_that_was_force_deleted_does_not_end(stage: Stage, plugin: Process) -> None:
    claim = run(stage, "forced")
    made = slice_of(stage, claim)
    with frozen(stage, stage.api.get("Pod", "forced")["metadata"]["uid"]):
        stage.api.delete("Pod", "forced", grace=0)
        stage.api.delete("ResourceClaim", "forced")
        assert_kept(stage, claim, made, holder="forced")
    assert_given_back(stage, made)


@pytest.mark.timeout(400)
def test_the_journal_is_lost_after_the_claim(stage: Stage, plugin: Process) -> None:
    claim = run(stage, "lost")
    made = slice_of(stage, claim)
    strip_and_delete(stage.api, "lost")
    lose_journal(stage, plugin)
    assert_kept(stage, claim, made, holder="lost")
    stage.api.delete("Pod", "lost")
    assert_given_back(stage, made)
