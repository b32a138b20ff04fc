"""``kubectl mig explain`` says of volumes and other pods what the controller says."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from cli.explaining.explain import Explainer
from cli.facts import read_facts
from dra.cel.selectors import Selectors
from dra.claims.classes import generated_classes
from dra.common.resources import (
    DEVICE_CLASSES,
    EVENTS,
    LEASES,
    MIG_NODES,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    RESOURCE_CLAIMS,
    Obj,
    Resource,
)
from dra.kube.errors import ForbiddenError, KubeError
from dra.kube.http import Keep, whole
from dra.pods.pods import read_pod
from tests.controller.helpers.objects import DRIVER, allocated, claim, mignode, node, pod, versioned
from tests.controller.helpers.volumes import volume, volume_claim
from tests.dra.gpus import A100


class Session:
    """A session with a server that has these objects and refuses some kinds."""

    driver = DRIVER

    def __init__(
        self,
        objects: dict[Resource, list[Obj]],
        refused: dict[Resource, KubeError],
        elsewhere: KubeError | None = None,
    ):
        self._objects = objects
        self._refused = refused
        self._elsewhere = elsewhere
        self.api = self

    def now(self) -> datetime:
        return datetime.now(UTC)

    def list(
        self,
        resource: Resource,
        *,
        namespace: str = "",
        field_selector: str = "",
        keep: Keep | None = None,
    ) -> SimpleNamespace:
        if resource in self._refused:
            raise self._refused[resource]
        if self._elsewhere is not None and not namespace:
            raise self._elsewhere
        keep = keep or whole
        found = self._objects.get(resource, [])
        return SimpleNamespace(items=[keep(msgspec.Raw(msgspec.json.encode(o))) for o in found])


def explained(
    *volumes: Obj,
    refused: dict[Resource, KubeError] | None = None,
    known: Obj | None = None,
    status: Obj | None = None,
    elsewhere: KubeError | None = None,
    **spec: Any,
) -> tuple[list[str], tuple[str, ...]]:
    """The findings about a pod that uses the volume claim ``data``, and what was not readable.

    ``elsewhere`` is what lists of all namespaces are answered with.
    """
    used = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    body = versioned({**pod("p", "c", **{"volumes": used, **spec}), "status": status or {}})
    objects = {
        NODES: [versioned(node("node-a", labels={"zone": "a"}))],
        MIG_NODES: [mignode("node-a")],
        DEVICE_CLASSES: [
            versioned(c) for c in generated_classes(DRIVER, [p.name for p in A100.profiles])
        ],
        RESOURCE_CLAIMS: [known or versioned(claim("c"))],
        PODS: [body],
        EVENTS: [],
        NAMESPACES: [versioned({"metadata": {"name": "default", "labels": {"of": "us"}}})],
        PERSISTENT_VOLUME_CLAIMS: [v for v in volumes if "namespace" in v["metadata"]],
        PERSISTENT_VOLUMES: [v for v in volumes if "namespace" not in v["metadata"]],
    }
    session: Any = Session(objects, refused or {}, elsewhere)
    facts = read_facts(session, "default")
    explanation = Explainer(facts, Selectors()).pod(read_pod(body))
    found = [f"{f.reason}: {f.message}" for f in explanation.verdict.findings]
    return found, facts.unread


def test_a_missing_volume_claim_is_said_in_the_controllers_words() -> None:
    found, _ = explained()
    assert found == ["WaitingForVolumeClaim: PersistentVolumeClaim data does not exist: create it"]


def test_it_is_said_in_these_words_while_the_pod_still_has_its_slice() -> None:
    has_one = allocated(versioned(claim("c")), "node-a", "gpu-0-mig-1g5gb-19-4")
    found, _ = explained(known=has_one)
    assert found == ["WaitingForVolumeClaim: PersistentVolumeClaim data does not exist: create it"]


def _condition(reason: str, message: str) -> Obj:
    condition = {"type": f"{DRIVER}/ClaimsAllocated", "status": "False", "reason": reason}
    return {"conditions": [{**condition, "message": message, "lastTransitionTime": "2026"}]}


def test_a_claim_of_another_driver_that_was_waited_for_is_said_in_the_controllers_words() -> None:
    said = "ResourceClaim tape, which is for another driver, stays unallocated"
    unknown: dict[Resource, KubeError] = {LEASES: ForbiddenError("no", status=403)}
    status = _condition("WaitingForOtherClaim", said)
    found, _ = explained(volumes=[], status=status, refused=unknown)
    assert found[0].startswith(f"WaitingForOtherClaim: {said}")


@pytest.mark.parametrize("reason", ["WaitingForSlice", "NextInLine", ""])
def test_who_may_read_his_namespace_only_is_told_what_his_pod_says(reason: str) -> None:
    no = ForbiddenError("no", status=403)
    kinds = (MIG_NODES, NODES, DEVICE_CLASSES, PERSISTENT_VOLUMES, NAMESPACES, LEASES)
    refused: dict[Resource, KubeError] = dict.fromkeys(kinds, no)
    status = _condition(reason, "no room") if reason else {}
    found, unread = explained(volumes=[], status=status, refused=refused, elsewhere=no)
    if reason:
        assert found == [f"{reason}: no room"]
    else:
        assert found[0].startswith("NotAllowedToRead: ")
    assert {"mignodes.mig.dra.dev", "resourceclaims.resource.k8s.io"} <= {*unread}


def test_a_node_that_a_volume_does_not_reach_is_said_so() -> None:
    found, unread = explained(
        volume_claim("data", volume="v"), volume("v", zone="x", phase="Bound")
    )
    assert ("VolumeElsewhere", unread) == (found[0].partition(":")[0], ())
