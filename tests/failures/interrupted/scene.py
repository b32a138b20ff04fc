"""A node on which an operation is interrupted, and what an operation is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from dra.common.resources import Obj
from dra.gpu.inventory import ClaimRef
from tests.failures.helpers.plant import Plant
from tests.failures.helpers.site import Site
from tests.failures.helpers.steps import StepRecorder, hooked

TARGET = ("gpu-0-mig-1g5gb-19-4",)
TWO_GPUS = ("gpu-0-mig-2g10gb-14-2", "gpu-1-mig-1g5gb-19-0")
IN_THE_WAY = ("gpu-0-mig-1g5gb-19-3", "gpu-1-mig-2g10gb-14-0")
NEIGHBOUR = ("gpu-0-mig-1g5gb-19-0",)
SHARED = ("gpu-0-mig-1g5gb-19-0-share",)
"""Device that the neighbour shares with the target, where that has it."""
SHARE = ("gpu-0-mig-1g5gb-19-4-share",)
WHOLE = ("gpu-1",)
LONG = 3
TURNS: Obj = {"strategy": "TimeSlicing", "timeSlicing": {"interval": "Long"}}
MPS: Obj = {"strategy": "MPS", "mps": {"activeThreadPercentage": 40}}
DECLARED = ("gpu-1-mig-3g20gb-9-4",)
BESIDE_DECLARED = "gpu-1-mig-3g20gb-9-0"
FOREIGN = ("1g.5gb", 5)


@dataclass(frozen=True, slots=True)
class Scene:
    """A node before the operation: our claim, a neighbour's that is prepared, a foreign slice."""

    site: Site
    target: ClaimRef
    devices: tuple[str, ...]
    neighbour: ClaimRef
    foreign: frozenset[int]

    @property
    def beside(self) -> tuple[str, ...]:
        """The neighbour's device."""
        return SHARED if self.devices == SHARED else NEIGHBOUR


@dataclass(frozen=True, slots=True)
class Scenario:
    """``setup`` leads to the moment before ``act``; it ends with the process that it started in.

    ``wanted`` is whether kubelet wants the claim prepared when it asks again. ``neighbour_waits``:
    the neighbour's slice went with a reboot and is there again once kubelet asks for it. With
    ``keeps`` GPU instances of released slices are kept. ``awaited``: kube-scheduler binds
    the pod only once its slices are made. ``prelude`` is what the process that is interrupted does
    before. ``layouts`` are two that the second GPU has, one before and one after; ``ready`` are
    slices that are there in the end besides those that are wanted. ``sharing`` is how several
    processes share the claim's device; the second GPU is whole where that is wanted.
    """

    devices: tuple[str, ...]
    setup: Callable[[Scene], None]
    act: Callable[[Scene, Plant], None]
    wanted: bool = True
    starts: bool = True
    neighbour_waits: bool = False
    keeps: bool = False
    layouts: tuple[str, str] | None = None
    ready: tuple[str, ...] = ()
    awaited: bool = False
    sharing: Obj | None = None
    prelude: Callable[[Scene, Plant], None] = lambda scene, plant: None


@contextmanager
def running_plant(scene: Scene, recorder: StepRecorder) -> Iterator[Plant]:
    with hooked(recorder):
        yield Plant(scene.site, recorder)
