"""``kubectl mig explain`` says of the pods of a gang what the controller's event says of them."""

from __future__ import annotations

import pytest

from dra.common.resources import (
    DEVICE_CLASSES,
    MIG_NODES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
)
from dra.gangs.membership import COUNT_LABEL, NAME_LABEL
from tests.cli.conftest import Mig
from tests.cli.world import World
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import request


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
