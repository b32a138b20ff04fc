"""``kubectl mig explain`` says of volumes and other pods what the controller says."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from cli.explaining.explain import Explainer
from cli.explaining.facts import read_facts
from dra.cel.cel import Selectors
from dra.claims.classes import generated_classes
from dra.common.resources import (
    DEVICE_CLASSES,
    MIG_NODES,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    RESOURCE_CLAIMS,
    STORAGE_CLASSES,
    Obj,
    Resource,
)
from dra.kube.errors import ForbiddenError, KubeError, ObjectNotFoundError
from dra.pods.pods import read_pod
from tests.controller.objects import DRIVER, claim, mignode, node, pod, versioned
from tests.controller.volumes import volume, volume_claim
from tests.dra.gpus import A100

VOLUMES = (PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, STORAGE_CLASSES)


class Session:
    """A session with a server that has these objects and refuses some kinds."""

    driver = DRIVER

    def __init__(self, objects: dict[Resource, list[Obj]], refused: dict[Resource, KubeError]):
        self._objects = objects
        self._refused = refused
        self.api = self

    def now(self) -> datetime:
        return datetime.now(UTC)

    def list(self, resource: Resource, **_: Any) -> SimpleNamespace:
        if resource in self._refused:
            raise self._refused[resource]
        return SimpleNamespace(items=self._objects.get(resource, []))


def explained(
    *volumes: Obj, refused: dict[Resource, KubeError] | None = None, **spec: Any
) -> tuple[list[str], tuple[str, ...]]:
    """The findings about a pod that uses the volume claim ``data``, and what was not readable."""
    used = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    body = versioned(pod("p", "c", **{"volumes": used, **spec}))
    objects = {
        NODES: [versioned(node("node-a", labels={"zone": "a"}))],
        MIG_NODES: [mignode("node-a")],
        DEVICE_CLASSES: [
            versioned(c) for c in generated_classes(DRIVER, [p.name for p in A100.profiles])
        ],
        RESOURCE_CLAIMS: [versioned(claim("c"))],
        PODS: [body],
        NAMESPACES: [versioned({"metadata": {"name": "default", "labels": {"of": "us"}}})],
        PERSISTENT_VOLUME_CLAIMS: [v for v in volumes if "namespace" in v["metadata"]],
        PERSISTENT_VOLUMES: [v for v in volumes if "namespace" not in v["metadata"]],
    }
    session: Any = Session(objects, refused or {})
    facts = read_facts(session, "default")
    explanation = Explainer(facts, Selectors()).pod(read_pod(body))
    found = [f"{f.reason}: {f.message}" for f in explanation.findings]
    return found, facts.unread


def test_a_missing_volume_claim_is_said_in_the_controllers_words() -> None:
    found, _ = explained()
    assert found == ["WaitingForVolumeClaim: PersistentVolumeClaim data does not exist: create it"]


def test_a_node_that_a_volume_does_not_reach_is_said_so() -> None:
    found, unread = explained(
        volume_claim("data", volume="v"), volume("v", zone="x", phase="Bound")
    )
    assert ("VolumeElsewhere", unread) == (found[0].partition(":")[0], ())


@pytest.mark.parametrize("error", [ForbiddenError("no", status=403), ObjectNotFoundError("no")])
def test_without_volumes_nothing_is_said_of_them(error: KubeError) -> None:
    found, unread = explained(refused={STORAGE_CLASSES: error})
    assert not any("Volume" in f for f in found), found
    assert ("storageclasses.storage.k8s.io" in unread) == isinstance(error, ForbiddenError)


def test_another_pod_in_the_way_is_said_so() -> None:
    term = {
        "topologyKey": "zone",
        "labelSelector": {},
        "namespaceSelector": {"matchLabels": {"of": "them"}},
    }
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    found, _ = explained(volumes=[], affinity={"podAffinity": {required: [term]}})
    assert found[0].startswith("PodAffinityMismatch: "), found
