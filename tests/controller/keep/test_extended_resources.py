"""A generated class carries its extended resource only where that takes no pods from others."""

from __future__ import annotations

import pytest

from dra.common.resources import DEVICE_CLASSES, Obj
from dra.gpu.inventory import AllocatorKind
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import device_class, mignode, node, versioned

NAME = "nvidia.com/mig-1g.5gb"
TAKEN = "ExtendedResourceTaken"


EARLIER, LATER = "2026-01-01T00:00:00Z", "2100-01-01T00:00:00Z"
"""Before and after any class of ours is made."""


def foreign(resource: str = NAME, name: str = "nvidia-mig-1g.5gb", made: str = EARLIER) -> Obj:
    made_at = device_class(name, "device.driver == 'gpu.nvidia.com'", extendedResourceName=resource)
    made_at["metadata"]["creationTimestamp"] = made
    return made_at


def carried(bench: Bench, name: str = "mig-1g.5gb") -> str | None:
    spec: Obj = bench.api.get(DEVICE_CLASSES, name)["spec"]
    found: str | None = spec.get("extendedResourceName")
    return found


def allocated_by(bench: Bench, allocator: AllocatorKind, name: str = "node-a") -> None:
    bench.cluster.set_mignode(mignode(name, allocator=allocator))
    bench.run()


@pytest.fixture
def bench() -> Bench:
    """One node, which kube-scheduler allocates."""
    bench = Bench()
    bench.cluster.set_node(node("node-a"))
    allocated_by(bench, AllocatorKind.SCHEDULER)
    return bench


def test_classes_of_hardware_that_has_gone_carry_no_name_either(bench: Bench) -> None:
    bench.cluster.remove_mignode("node-a")
    bench.run()
    assert {carried(bench, name) for name in bench.classes()} == {None}
    writes = list(bench.api.writes)
    bench.run(seconds=100)
    assert bench.api.writes == writes


def taken_by(bench: Bench) -> str | None:
    annotations: Obj = bench.api.get(DEVICE_CLASSES, "mig-1g.5gb")["metadata"]["annotations"]
    found: str | None = annotations.get("mig.dra.dev/extended-resource-taken-by")
    return found


def test_a_name_that_somebody_elses_older_class_gets_is_left_to_it(bench: Bench) -> None:
    bench.cluster.set_class(versioned(foreign()))
    bench.run()
    assert (carried(bench), carried(bench, "mig-1g.5gb.me")) == (None, f"{NAME}.me")
    assert taken_by(bench) == "nvidia-mig-1g.5gb"
    assert bench.recorder.reasons("mig-1g.5gb") == [TAKEN]
    assert "ours goes without" in bench.recorder.events[-1][3]
    assert "kubectl annotate deviceclass nvidia-mig-1g.5gb" in bench.recorder.events[-1][3]
    bench.run(seconds=100)
    assert bench.recorder.reasons("mig-1g.5gb") == [TAKEN]

    bench.cluster.remove_class("nvidia-mig-1g.5gb")
    bench.run()
    assert (carried(bench), taken_by(bench)) == (NAME, None)
    bench.cluster.set_class(versioned(foreign()))
    bench.run()
    assert bench.recorder.reasons("mig-1g.5gb") == [TAKEN, TAKEN], "it is news again"


def test_what_a_newer_class_serves_is_not_given_up_as_that_would_take_it_from_both(
    bench: Bench,
) -> None:
    bench.cluster.set_class(versioned(foreign(made=LATER)))
    bench.run()
    assert (carried(bench), taken_by(bench)) == (NAME, "nvidia-mig-1g.5gb")
    assert "ours is older and out of use" in bench.recorder.events[-1][3]
    allocated_by(bench, AllocatorKind.CONTROLLER)
    assert carried(bench) == NAME
    allocated_by(bench, AllocatorKind.SCHEDULER)
    bench.run(seconds=100)
    before = len(bench.api.writes)
    bench.cluster.remove_class("nvidia-mig-1g.5gb")
    bench.run()
    assert (carried(bench), taken_by(bench)) == (NAME, None)
    assert len(bench.api.writes) == before + 1, "kube-scheduler looks at a class when it is written"


def test_a_class_that_was_there_first_keeps_its_pods() -> None:
    bench = Bench()
    bench.cluster.set_class(versioned(foreign()))
    allocated_by(bench, AllocatorKind.SCHEDULER)
    assert carried(bench) is None
    bench.cluster.set_class(versioned(foreign(made=LATER)))
    bench.run()
    assert carried(bench) is None
    bench.cluster.set_class(versioned(foreign("nvidia.com/gpu")))
    bench.run()
    assert carried(bench) == NAME, "it has given the name up"
