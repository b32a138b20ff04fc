"""``kubectl mig doctor``: each thing that can be wrong is seen, and named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from cli.doctoring.examination import Evidence, gather
from cli.doctoring.installation import rights
from cli.facts import ClusterFacts
from cli.output import Output
from cli.session import Session
from cli.site import Site
from dra.claims.remedies import remedy
from dra.common.resources import (
    CUSTOM_RESOURCE_DEFINITIONS,
    DEVICE_CLASSES,
    MIG_NODES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
)
from dra.gpu.inventory import GpuHealth, NodeMode, Publication
from dra.pods.residents import Hosts
from tests.cli.conftest import Mig
from tests.cli.world import World
from tests.controller.helpers.objects import claim, gpu, instance, pod
from tests.dra.gpus import A100

PROFILES = tuple(p.name for p in A100.profiles)


@pytest.fixture
def healthy(world: World) -> World:
    """Everything as it should be."""
    world.add_classes(*PROFILES)
    world.lead()
    world.add_node("node-a")
    world.add_plugin("node-a", ready=True)
    return world


@pytest.mark.parametrize(
    ("runtime", "status", "says"),
    [
        ("containerd://2.1.4", "ok", "no container runtime is known to drop CDI devices"),
        ("containerd://1.7.27", "warn", "only with enable_cdi = true"),
        ("docker://28.0.0", "fail", "node node-a: the container runtime is Docker"),
    ],
)
def test_a_container_runtime_that_drops_slices_is_named(
    healthy: World, mig: Mig, runtime: str, status: str, says: str
) -> None:
    info = {"containerRuntimeVersion": runtime}
    before = healthy.api.get(NODES, "node-a")
    healthy.set_status(NODES, before, {**before["status"], "nodeInfo": info})
    [(found, message)] = checks(mig)[1]["runtimes"]
    assert (found, says in message) == (status, True), message


def checks(mig: Mig) -> tuple[int, dict[str, list[tuple[str, str]]]]:
    ran = mig("doctor", "-o", "json")
    found: dict[str, list[tuple[str, str]]] = {}
    for check in ran.json["checks"]:
        found.setdefault(check["name"], []).append((check["status"], check["message"]))
    return ran.code, found


def test_a_healthy_cluster_has_nothing_to_report(healthy: World, mig: Mig) -> None:
    code, found = checks(mig)
    bad = {n: c for n, each in found.items() for c in each if c[0] not in ("ok", "unknown")}
    assert (code, bad) == (0, {})
    assert set(found) >= {
        "kubernetes",
        "crd",
        "classes",
        "controller",
        "plugin",
        "modes",
        "claims",
        "instances",
    }
    assert mig("doctor").out.endswith("\n11 ok\n")


def mignode_without_node(world: World) -> None:
    world.add_mignode("node-z")
    world.add_plugin("node-z", ready=True)


def unreadable(world: World) -> None:
    found = world.api.get(MIG_NODES, "node-a")
    world.set_status(MIG_NODES, found, {**found["status"], "gpus": [_GPU]})


_GPU = {
    "name": "gpu-0",
    "uuid": "u",
    "migMode": {"enabled": True, "pending": True},
    "instances": [{"placement": {"start": 40, "size": 40}, "state": "lost"}],
}


def unavailable(world: World) -> None:
    world.replace_gpus(
        "node-a", gpu(0, "node-a", unavailable="mig-manager is here", reason="MIGManagerActive")
    )


def needs_reset(world: World) -> None:
    said = GpuHealth("Reset", "Completed", "Default", open_in=("dcgm-exporter (7)",))
    sick = gpu(0, "node-a", unavailable="the driver asks for a reset", reason="GpuRecoveryRequired")
    world.replace_gpus("node-a", replace(sick, health=said))


def to_be_remapped(world: World) -> None:
    said = GpuHealth("None", "NotSupported", "Default", ("a memory row is remapped soon",))
    world.replace_gpus("node-a", replace(gpu(0, "node-a"), health=said))


def lost(world: World) -> None:
    world.replace_gpus("node-a", gpu(0, instances=(instance("1g.5gb", 3, state="lost"),)))


def stuck_finalizer(world: World) -> None:
    body = claim("c")
    body["metadata"]["finalizers"] = ["mig.dra.dev/allocation"]
    world.api.create(RESOURCE_CLAIMS, body)
    world.api.delete(RESOURCE_CLAIMS, "c", namespace="default")


def gpu_lost(world: World, **fields: Any) -> None:
    sick = gpu(0, **{"unavailable": "it fell off the bus", "reason": "GpuLost"} | fields)
    held = instance("1g.5gb", 3, uid="c", state="reclaiming")
    world.replace_gpus("node-a", replace(sick, instances=(held,)))


def test_one_reason_has_one_remedy_for_a_gpu_and_what_is_on_it(healthy: World, mig: Mig) -> None:
    gpu_lost(healthy)
    checks_of = {c["name"]: c for c in mig("doctor", "-o", "json").json["checks"] if c["remedy"]}
    reset = remedy("GpuLost", node="node-a", gpu="gpu-0", uuid="GPU-node-a-0")
    assert "kubectl mig resume node-a gpu-0" in reset
    assert checks_of["modes"]["remedy"] == checks_of["instances"]["remedy"] == reset
    name = "node-a"
    healthy.api.patch(MIG_NODES, name, {"spec": {"drain": {"gpus": ["gpu-0"], "reason": "why"}}})
    (drained,) = [c for c in mig("doctor", "-o", "json").json["checks"] if c["name"] == "modes"]
    assert drained["message"].endswith("(kubectl mig resume node-a gpu-0); it fell off the bus")
    assert drained["remedy"] == reset
    assert "it fell off the bus" in mig("map").out
    told = GpuHealth(notes=("GpuLost when it was released",))
    gpu_lost(healthy, reason="GpuReleased", health=told)
    healthy.api.patch(MIG_NODES, name, {"spec": {"drain": {"gpus": ["gpu-0"], "reason": "why"}}})
    assert "(kubectl mig resume node-a gpu-0); GpuLost when it was released" in mig("map").out
    checks_of = {c["name"]: c for c in mig("doctor", "-o", "json").json["checks"]}
    assert checks_of["modes"]["message"].endswith("gpu-0); GpuLost when it was released")
    assert checks_of["instances"]["remedy"].startswith("kubectl mig resume node-a gpu-0")


def words(value: object) -> str:
    return value if isinstance(value, str) else "-"


def unseen(world: World) -> None:
    world.hold("c", "node-a", "gpu-0-mig-1g5gb-19-0")
    containers = [{"name": "main", "image": "none"}]
    world.add_pod("blind", "c", running=True, nodeName="node-a", containers=containers)


def twice(world: World) -> None:
    world.hold("one", "node-a", "gpu-0-mig-3g20gb-9-4", pod_name="p")
    world.hold("copy", "node-a", "gpu-0-mig-1g5gb-19-5", pod_name="q")


FIRST = "mig-dra-driver/mig of driver mig.dra.dev"
SECOND, RENAMED = "default/mig of driver mig.dra.dev", "default/mig of driver b.example"


def second_program(world: World) -> None:
    """The chart once more, in another namespace and under another name of the driver."""
    flags = ["--driver-name=b.example"]
    world.add_plugin("node-a", ready=False, namespace="default", args=flags)


def second_controller(world: World) -> None:
    for namespace in ("mig-dra-driver", "default"):
        world.add_component("controller", "controller-0", namespace=namespace)


FAILURES: list[tuple[Callable[[World], object], str, str]] = [
    (lambda w: w.unlead(), "controller", "no controller leads"),
    (
        second_controller,
        "installations",
        f"driver mig.dra.dev is of several installations, {SECOND}, {FIRST}: the programs of one",
    ),
    (
        second_program,
        "installations",
        f"node node-a is of several installations, {RENAMED}, {FIRST}: the programs of one work",
    ),
    (lambda w: w.api.delete(DEVICE_CLASSES, "mig-3g.20gb"), "classes", "mig-3g.20gb"),
    (
        lambda w: w.say_not_ready("node-a", "NVML is not there"),
        "plugin",
        "node node-a: NVML is not there",
    ),
    (lambda w: w.fall_silent("node-a", minutes=3), "plugin", "its plugin has been silent for 3m"),
    (mignode_without_node, "plugin", "MigNode node-z has no Node"),
    (unreadable, "plugin", "MigNode node-a cannot be read"),
    (unavailable, "modes", "node-a gpu-0 is unavailable (MIGManagerActive): mig-manager is here"),
    (needs_reset, "modes", "the driver asks for a reset; it is open in dcgm-exporter (7)"),
    (unseen, "claims", "pod default/blind: no container uses claim 'c'"),
    (twice, "claims", "claims default/one and default/copy are both allocated 3g.20gb at 4:4 of"),
    (gpu_lost, "modes", "node-a gpu-0 is unavailable (GpuLost): it fell off the bus"),
    (lost, "instances", "node-a gpu-0: 1g.5gb at 3:1 is lost"),
    (
        lambda w: w.hold("c", "node-x", "gpu-0-mig-1g5gb-19-0", pod_name="p"),
        "claims",
        "default/c is allocated on node-x, which has no MigNode",
    ),
]


@pytest.mark.parametrize(("build", "name", "says"), FAILURES, ids=words)
def test_what_is_broken_fails_with_its_name(
    healthy: World, mig: Mig, build: Callable[[World], object], name: str, says: str
) -> None:
    build(healthy)
    code, found = checks(mig)
    assert code == 1
    failed = [message for status, message in found[name] if status == "fail"]
    assert any(says in message for message in failed), found[name]


def foreign(world: World) -> None:
    world.replace_gpus("node-a", gpu(0, instances=(instance("1g.5gb", 3, state="foreign"),)))


def someone_elses_class(world: World) -> None:
    world.api.delete(DEVICE_CLASSES, "mig-3g.20gb")
    world.add_class("mig-3g.20gb", "true")


def fell_back(world: World) -> None:
    told = Publication(done=False, reason="GateOff", message="the gate is off")
    world.replace_gpus("node-a", gpu(0), publication=told)


def overdue(world: World) -> None:
    world.unlead()
    world.lead(seconds_ago=9)


def not_in_its_mode(world: World) -> None:
    mode = NodeMode("layout", "failed", "halves", "gpu-0 has no 2g.10gb")
    world.replace_gpus("node-a", gpu(0), mode=mode)


WARNINGS: list[tuple[Callable[[World], object], str, str]] = [
    (
        overdue,
        "controller",
        "controller-0 leads; it runs outside the cluster; its lease was renewed",
    ),
    (
        lambda w: w.add_bare_node("node-c", labels={"nvidia.com/gpu.present": "true"}),
        "plugin",
        "node-c has GPUs",
    ),
    (foreign, "instances", "1g.5gb at 3:1 is foreign"),
    (someone_elses_class, "classes", "mig-3g.20gb was made by somebody else"),
    (fell_back, "modes", "the gate is off"),
    (not_in_its_mode, "plugin", "node node-a: layout halves is failed: gpu-0 has no 2g.10gb"),
    (to_be_remapped, "modes", "node-a gpu-0: a memory row is remapped soon"),
]


@pytest.mark.parametrize(("build", "name", "says"), WARNINGS, ids=words)
def test_what_is_worth_knowing_is_a_warning_and_no_failure(
    healthy: World, mig: Mig, build: Callable[[World], object], name: str, says: str
) -> None:
    build(healthy)
    code, found = checks(mig)
    assert code == 0, found
    assert any(s == "warn" and says in message for s, message in found[name]), found


@pytest.mark.parametrize(("node", "status"), [("node-a", "warn"), ("node-b", "ok")])
def test_dcgm_beside_slices_is_said_before_it_holds_one(
    healthy: World, mig: Mig, node: str, status: str
) -> None:
    body = pod("exporter", nodeName=node)
    body["spec"]["containers"][0]["image"] = "nvcr.io/nvidia/k8s/dcgm-exporter:4.2.3"
    healthy.api.create(PODS, body)
    code, found = checks(mig)
    [(said, message)] = found["monitors"]
    assert (code, said) == (0, status)
    assert ("node-a" in message) is (status == "warn")


def later(world: World) -> Any:
    """The doctor's findings about claims, an hour from now."""
    from cli.doctoring.nodes import claims

    class Sink:
        def isatty(self) -> bool:
            return False

    session = Session(
        api=world.api,
        out=Output(Sink()),  # type: ignore[arg-type]
        namespace="default",
        now=lambda: datetime.fromtimestamp(datetime.now(UTC).timestamp() + 3600, UTC),
    )
    return [(c.status, c.message) for c in claims(gather(session))]


def test_what_many_gpus_have_is_shown_once_with_their_number_and_the_first_names(
    healthy: World, mig: Mig
) -> None:
    for number in range(3):
        node, reason = f"many-{number}", "MIGManagerActive"
        gpus = [
            gpu(n, node, unavailable=f"gpu-{n} of {node} is another's", reason=reason)
            for n in range(4)
        ]
        healthy.add_node(node, *gpus)
        healthy.add_plugin(node, ready=True)
    shown = " ".join(mig("doctor").out.split())
    assert shown.count("is another's") == 1
    assert (
        "modes 12 alike (many-0 gpu-0, many-0 gpu-1, many-0 gpu-2, many-0 gpu-3, many-1 gpu-0 and "
        "7 more): many-0 gpu-0 is unavailable (MIGManagerActive): gpu-0 of many-0 is another's"
    ) in shown
    assert len(checks(mig)[1]["modes"]) == 12


def test_a_claim_that_cannot_go_says_what_holds_it(healthy: World, mig: Mig) -> None:
    stuck_finalizer(healthy)
    assert checks(mig)[1]["claims"][0][0] == "ok", "it has only just been deleted"
    ((status, message),) = later(healthy)
    assert status == "fail"
    assert "default/c is being deleted; the controller has not taken its finalizer" in message


def test_a_claim_that_somebody_holds_says_who(healthy: World) -> None:
    healthy.hold("c", "node-a", "gpu-0-mig-1g5gb-19-0", pod_name="trainer")
    healthy.set_finalizers("c")
    healthy.api.delete(RESOURCE_CLAIMS, "c", namespace="default")
    ((_, message),) = later(healthy)
    assert message == "claim default/c is being deleted; in use by pod trainer"


def test_a_slice_that_nobody_uses_is_told_after_a_while(healthy: World, mig: Mig) -> None:
    healthy.hold("idle", "node-a", "gpu-0-mig-1g5gb-19-0")
    assert checks(mig)[1]["claims"][0][0] == "ok", "its pod may be on its way"
    ((status, message),) = later(healthy)
    assert (status, "default/idle holds gpu-0-mig-1g5gb-19-0" in message) == ("warn", True)


def test_no_installation_at_all_is_told_as_such(world: World, mig: Mig) -> None:
    installed = world.api.get(CUSTOM_RESOURCE_DEFINITIONS, str(MIG_NODES))
    world.api.delete(CUSTOM_RESOURCE_DEFINITIONS, str(MIG_NODES))
    try:
        code, found = checks(mig)
        ran = mig("map")
    finally:
        bare = {k: v for k, v in installed.items() if k != "status"}
        bare["metadata"] = {"name": str(MIG_NODES)}
        world.api.create(CUSTOM_RESOURCE_DEFINITIONS, bare)
    assert code == 1
    assert found["crd"][0][0] == "fail"
    assert ran.code == 4
    assert "is the driver installed?" in ran.err


def evidence(**fields: Any) -> Evidence:
    facts = ClusterFacts("mig.dra.dev", Site(()), True, {}, {}, Hosts(), {})
    return Evidence(facts, datetime.now(UTC), **fields)


def test_what_the_caller_may_not_read_is_told() -> None:
    made = evidence()
    blind = replace(made, facts=replace(made.facts, unread=("pods",)))
    (check,) = rights(blind)
    assert (check.status, "you may not read pods" in check.message) == ("warn", True)
