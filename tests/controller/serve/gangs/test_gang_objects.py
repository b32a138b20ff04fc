"""Gangs named by objects of other projects, where those are known."""

from __future__ import annotations

from typing import Any, NoReturn

from dra.common.resources import PODS
from dra.gangs.membership import KUBERNETES, VOLCANO
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import copied, pod
from tests.controller.serve.gangs.gangpods import NODES, group, grouped, held, told


def test_an_object_says_how_many_where_it_is_known() -> None:
    resource = KUBERNETES.at_version("v1alpha2")
    bench = Bench(*NODES)
    bench.cluster.gangs.note_listed(resource)
    grouped(bench, 0, 1)
    bench.run()
    assert not held(bench, "a")
    assert "PodGroup default/a of scheduling.k8s.io does not exist" in told(bench, "a-0")
    bench.cluster.gangs.change_group(resource, ("default", "a"), group(3))
    bench.run(seconds=11.0)
    assert "once 3 of its pods" in told(bench, "a-0")
    grouped(bench, 2)
    bench.run()
    assert len(held(bench, "a")) == 3


def test_each_pod_is_by_itself_where_such_objects_are_not_known() -> None:
    bench = Bench(*NODES)
    bench.cluster.gangs.note_listed(VOLCANO.at_version("v1beta1"))
    grouped(bench, 0)
    bench.run()
    assert held(bench, "a") == ["a-0"]


class _Scanned(dict[Any, Any]):
    """A table that is not to be gone through."""

    def __iter__(self) -> NoReturn:
        raise AssertionError("gone through")

    def items(self) -> NoReturn:
        raise AssertionError("gone through")


def test_an_object_is_looked_for_by_its_name_however_many_gangs_there_are() -> None:
    """An object's change took 3 ms beside 20,000 gangs: any user may change his all the time."""
    resource = KUBERNETES.at_version("v1alpha2")
    bench = Bench(*NODES)
    gangs = bench.cluster.gangs
    gangs.note_listed(resource)
    grouped(bench, 0, 1)
    bench.run()
    gangs._of_group = _Scanned(gangs._of_group)
    for number in (3, 2):
        gangs.change_group(resource, ("default", "a"), group(number))
        bench.run(seconds=11.0)
    assert len(held(bench, "a")) == 2
    gangs.change_group(resource, ("default", "a"), None)


def test_pods_of_a_gang_that_are_bound_are_not_gone_through_when_it_changes() -> None:
    """Each of 10,000 bound pods of one gang that went took 2 ms, 20 s for all."""
    resource = KUBERNETES.at_version("v1alpha2")
    bench = Bench(*NODES)
    bench.cluster.gangs.note_listed(resource)
    bench.cluster.gangs.change_group(resource, ("default", "a"), group(3))
    grouped(bench, 9, 0)
    bench.run()
    bench.remove_pod("a-9")
    assert bench.cluster.take_effects().pods == {("default", "a-0")}
    gang = bench.cluster.gangs.find(("default", "a-0"))
    assert gang is not None
    gang.members = _Scanned(gang.members)
    bound = pod("bound", nodeName=NODES[0], schedulingGroup={"podGroupName": "a"})
    bench.pod(bound)
    assert bench.cluster.take_effects().pods == {("default", "bound"), ("default", "a-0")}
    bench.remove_pod("bound")
    assert bench.cluster.take_effects().pods == {("default", "a-0")}
    waited = copied(bench.api.get(PODS, "a-0"))
    waited["spec"]["nodeName"] = NODES[0]
    bench.pod(waited)
    bench.cluster.take_effects()
    bench.pod(bound)
    assert bench.cluster.take_effects().pods == {("default", "bound")}
