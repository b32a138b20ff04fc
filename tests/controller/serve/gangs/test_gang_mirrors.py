"""Objects that say how large gangs are: those mirrored, and what is kept of them and of pods."""

from __future__ import annotations

from controller.leader.mirrors import POD_GROUPS
from dra.common.resources import Obj
from dra.gangs.membership import KUBERNETES, VOLCANO
from dra.kube.client import KubeApi, first_served
from dra.kube.errors import ObjectNotFoundError, UnavailableError
from dra.kube.reflector import Change
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import cluster, pod, versioned
from tests.controller.serve.gangs.gangpods import NODES, group, grouped, held, told

VERSIONS = [KUBERNETES.at_version(version) for version in KUBERNETES.versions]


OLDER = KUBERNETES.at_version("v1alpha2")


class Discovery(KubeApi):
    """Answers nothing but what resources are served, by group and version."""

    def __init__(self, served: dict[str, list[str]] | None) -> None:
        self.served = served

    def read(self, path: str) -> Obj:
        if self.served is None:
            raise UnavailableError("no answer")
        if path not in self.served:
            raise ObjectNotFoundError(path, status=404)
        return {"resources": [{"name": name} for name in self.served[path]]}


def test_the_first_version_that_is_served_is_taken() -> None:
    both = {f"/apis/{each.group}/{each.version}": ["podgroups", "x"] for each in VERSIONS}
    older = {f"/apis/{OLDER.group}/{OLDER.version}": ["podgroups/status", "podgroups"]}
    other = {f"/apis/{OLDER.group}/{OLDER.version}": ["workloads"]}
    assert first_served(Discovery(both), VERSIONS) == VERSIONS[0]
    assert first_served(Discovery(older), VERSIONS) == OLDER
    assert first_served(Discovery(other), VERSIONS) is None
    assert first_served(Discovery({}), VERSIONS) is None
    assert first_served(Discovery(None), VERSIONS) == VERSIONS[0]


def test_changes_of_each_kind_reach_the_gangs() -> None:
    known = cluster()
    body = versioned(pod("p", "c"))
    body["metadata"]["annotations"] = {"scheduling.k8s.io/group-name": "g"}
    known.set_pod(body)
    gang = known.gangs.find(("default", "p"))
    assert gang is not None
    assert known.gangs.minimum(gang) == 1
    (resource,) = [VOLCANO.at_version(version) for version in VOLCANO.versions]
    assert (resource,) in POD_GROUPS
    group = versioned({"metadata": {"namespace": "default", "name": "g"}, "spec": {"minMember": 5}})
    known.apply(resource, Change("added", None, group))
    known.apply(resource, None)
    assert known.gangs.minimum(gang) == 5
    assert ("default", "p") in known.take_effects().pods
    known.apply(resource, Change("deleted", group, None))
    assert known.gangs.minimum(gang) != 5
    known.remove_pod(("default", "p"))
    assert gang.key in known.take_effects().gone_gangs
    assert known.gangs.find(("default", "p")) is None


# -- gangs named by objects of other projects, where those are known


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
