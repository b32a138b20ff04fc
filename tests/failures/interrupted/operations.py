"""Work of the node program that is interrupted, and what comes before it in its process."""

from __future__ import annotations

from collections.abc import Callable

from tests.failures.helpers.plant import Plant
from tests.failures.interrupted.scene import Scene


def kept(*devices: str) -> Callable[[Scene, Plant], None]:
    """The GPU instances of a claim that was released are there: this process keeps them."""

    def prelude(scene: Scene, plant: Plant) -> None:
        former = scene.site.claim("former", devices)
        assert not plant.prepare(former).error
        assert not plant.unprepare(former).error
        plant.publish()
        scene.site.delete_claim(former)
        known = plant.daemon.common.journal.of_claim(former.uid)
        assert [e.device for e in known if e.idle] == list(devices)

    return prelude


def make_ahead(scene: Scene, plant: Plant) -> None:
    plant.watch(scene.target)
    plant.publish()
    known = plant.daemon.common.journal.of_claim(scene.target.uid)
    assert [e.device for e in known if e.early] == list(scene.devices)


def give_back(scene: Scene, plant: Plant) -> None:
    scene.site.unreserve(scene.target)
    plant.watch(scene.target)
    plant.publish()


def prepare(scene: Scene, plant: Plant) -> None:
    outcome = plant.prepare(scene.target)
    assert not outcome.error, outcome.error
    plant.publish()


def unprepare(scene: Scene, plant: Plant) -> None:
    outcome = plant.unprepare(scene.target)
    assert not outcome.error, outcome.error
    plant.publish()


def change_layout(scene: Scene, plant: Plant) -> None:
    scene.site.declare("after")
    plant.heed_labels()
    plant.publish()


def start(scene: Scene, plant: Plant) -> None:
    plant.start()
    plant.tend()
