"""``kubectl mig explain`` says of a waiting pod what the controller's event says of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from controller.cluster.cluster import Cluster
from dra.allocator.allocate import Allocator
from dra.allocator.explain.answers import as_obstacle
from dra.allocator.explain.judge import explain
from dra.allocator.problem import Problem, examine
from dra.cel.kinds import Kinds
from dra.cel.selectors import Selectors
from dra.claims.reader import Fault, Reader
from dra.claims.reasons import Obstacle
from dra.common.resources import DEVICE_CLASSES, MIG_NODES, NAMESPACES, NODES, PODS, RESOURCE_CLAIMS
from dra.gangs.membership import COUNT_LABEL, NAME_LABEL
from tests.cli.conftest import Mig
from tests.cli.explaining.situations import WAITS, waiting_pod
from tests.cli.world import World
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import DRIVER, FINALIZER, gpu, request
from tests.controller.helpers.stored import Stored

SAME_GPU = [{"matchAttribute": "mig.dra.dev/parentUUID"}]


def one_place_on_each_gpu(world: World) -> None:
    world.add_node("node-a", gpu(0, "node-a"), gpu(1, "node-a"))
    world.hold("first", "node-a", "gpu-0-mig-3g20gb-9-0")
    world.hold("second", "node-a", "gpu-1-mig-3g20gb-9-0")
    waiting_pod(world, request("r", "mig-3g.20gb", count=2), constraints=SAME_GPU)


def all_but_one(world: World) -> None:
    world.add_node("node-a")
    world.hold("first", "node-a", "gpu-0-mig-1g5gb-19-0")
    waiting_pod(world, request("r", "mig-1g.5gb", allocationMode="All"))


def two_to_look_at(world: World) -> None:
    world.add_node("node-a", gpu(0, "node-a", mig=False))
    waiting_pod(world, request("r", "gpu.dra.dev", count=2, adminAccess=True))


@pytest.mark.parametrize(
    ("build", "reason", "words"),
    [
        (
            one_place_on_each_gpu,
            "NoRoomTogether",
            "no room for 2 x 3g.20gb together with the same mig.dra.dev/parentUUID",
        ),
        (all_but_one, "NoRoomTogether", "no room for all x 1g.5gb together"),
        (two_to_look_at, "NothingToLookAt", "no node has as many as are asked for"),
    ],
)
def test_the_command_line_and_the_controller_say_the_same(
    world: World, mig: Mig, build: Callable[[World], None], reason: str, words: str
) -> None:
    world.add_classes("1g.5gb", "3g.20gb")
    label = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
    world.api.patch(NAMESPACES, "default", label)
    build(world)
    world.lead()
    event = _event(world)
    assert event is not None
    assert words in event.message
    found = mig("explain", WAITS, "-o", "json").json
    assert (found["state"], found["reason"]) == ("Waiting", reason), found["findings"]
    assert words in found["findings"][0]["message"]


def long_selectors(world: World) -> None:
    texts = [f"'{'x' * 9500}' != '{n}'" for n in range(8)]
    waiting_pod(world, request("r", "mig-1g.5gb", *texts))


def many_tolerations(world: World) -> None:
    tolerations = [{"key": f"k{n}", "operator": "Exists"} for n in range(201)]
    waiting_pod(world, request("r", "mig-1g.5gb"), pod={"tolerations": tolerations})


@pytest.mark.parametrize(
    ("build", "words"),
    [(long_selectors, "more than this driver reads"), (many_tolerations, "the pod is too large")],
)
def test_what_is_too_large_to_be_read_is_named_in_the_same_words(
    world: World, mig: Mig, build: Callable[[World], None], words: str
) -> None:
    world.add_classes("1g.5gb")
    world.add_node("node-a")
    build(world)
    world.lead()
    found = _examined(world)[1]
    assert isinstance(found, Fault)
    shown = mig("explain", WAITS, "-o", "json").json
    assert shown["reason"] == str(found.obstacle.reason) == "UnsupportedRequest"
    message = shown["findings"][0]["message"]
    assert message.removeprefix("claim default/wanted: ") == found.obstacle.message
    assert words in message


def _event(world: World) -> Obstacle | None:
    """Reason and words that the controller tells of the pod; None where it decides."""
    cluster, problem = _examined(world)
    assert isinstance(problem, Problem), problem
    allocator = Allocator(cluster.fleet, cluster.hosts)
    if allocator.decide(problem) is not None:
        return None
    return as_obstacle(explain(problem, allocator))


def _examined(world: World) -> tuple[Cluster, object]:
    """The cluster as the controller mirrors it, and what the pod lacks there."""
    kinds = Kinds(Selectors())
    cluster = Cluster(DRIVER, FINALIZER, kinds)
    for resource, take in (
        (DEVICE_CLASSES, cluster.set_class),
        (NODES, cluster.set_node),
        (MIG_NODES, cluster.set_mignode),
        (RESOURCE_CLAIMS, cluster.set_claim),
        (PODS, cluster.set_pod),
    ):
        for obj in map(Stored(resource), world.api.list(resource).items):
            take(obj)
    reader = Reader(DRIVER, kinds, cluster.classes)
    return cluster, examine(cluster.pods["default", WAITS], cluster, reader).found


# -- ``kubectl mig explain`` says of the pods of a gang what the controller's event says of them


def build(world: World, *numbers: int, size: str = "4") -> None:
    world.add_classes("1g.5gb", "3g.20gb")
    world.add_node("node-a")
    for number in numbers:
        name = f"g-{number}"
        world.add_claim(name, request("r", "mig-3g.20gb"))
        world.add_pod(name, name)
        labels = {NAME_LABEL: "g", COUNT_LABEL: size}
        world.api.patch(PODS, name, {"metadata": {"labels": labels}}, namespace="default")
    world.lead()


def event(world: World, name: str) -> tuple[str, str]:
    """Reason and words that the controller tells of a pod."""
    bench = Bench()
    for resource, take in (
        (DEVICE_CLASSES, bench.cluster.set_class),
        (NODES, bench.cluster.set_node),
        (MIG_NODES, bench.cluster.set_mignode),
        (RESOURCE_CLAIMS, bench.claim),
        (PODS, bench.pod),
    ):
        for obj in world.api.list(resource).items:
            take(obj)
    bench.run()
    events = bench.recorder.events
    return [(r, m) for kind, about, r, m in events if (kind, about) == ("Pod", name)][-1]


@pytest.mark.parametrize(
    ("numbers", "size", "words"),
    [
        (range(3), "4", "pod group default/g is allocated once 4 of its pods can be; there are 3"),
        (range(4), "4", "pod group default/g needs slices for 4 pods at once, and 2 fit; pod"),
        (range(2), "many", "is 'many': set a whole number from 1 to 400"),
    ],
)
def test_the_command_line_and_the_controller_say_the_same_of_a_gang(
    world: World, mig: Mig, numbers: range, size: str, words: str
) -> None:
    build(world, *numbers, size=size)
    reason, message = event(world, "g-1")
    assert words in message
    found = mig("explain", "g-1", "-o", "json").json
    assert (found["state"], found["reason"]) == ("Waiting", reason), found["findings"]
    assert found["findings"][0]["message"] == message


def test_a_gang_that_fits_is_about_to_be_allocated(world: World, mig: Mig) -> None:
    build(world, 0, 1, size="2")
    found = mig("explain", "g-0", "-o", "json").json
    assert "about to allocate" in found["findings"][0]["message"]
