"""Objects that say how large gangs are: those mirrored, and what is kept of them and of pods."""

from __future__ import annotations

from controller.leader.mirrors import POD_GROUPS
from dra.common.resources import Obj
from dra.gangs.membership import KUBERNETES, VOLCANO
from dra.kube.client import KubeApi, first_served
from dra.kube.errors import ObjectNotFoundError, UnavailableError
from dra.kube.reflector import Change
from tests.controller.helpers.objects import cluster, pod, versioned

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
