"""Gangs named by objects of other projects, where those are known."""

from __future__ import annotations

from dra.gangs.membership import KUBERNETES, VOLCANO
from tests.controller.helpers.bench import Bench
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
