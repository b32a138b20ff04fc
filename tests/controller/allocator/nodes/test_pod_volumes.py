"""Volumes decide where a pod is allocated, and whether it is, as kube-scheduler's plugins say."""

from __future__ import annotations

from typing import Any

import pytest

from controller import times
from controller.cluster.cluster import VOLUMES, Cluster
from dra.common.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, STORAGE_CLASSES, Obj
from dra.pods.volumes import (
    read_storage_class,
    read_volume,
    read_volume_claim,
)
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.deciding import decide, why
from tests.controller.helpers.objects import claim, cluster, mignode, node, pod, versioned
from tests.controller.helpers.stored import Stored
from tests.controller.helpers.volumes import ZONE, storage_class, uses, volume, volume_claim

HOST = "kubernetes.io/hostname"


def world(*objects: Obj, **zones: str) -> Cluster:
    """Nodes with one empty GPU each in zones, and volumes, claims and classes."""
    known = cluster()
    for name, zone in zones.items():
        labels = {HOST: name} | ({ZONE: zone} if zone else {})
        known.set_node(node(name, labels=labels))
        known.set_mignode(mignode(name))
    add(known, *objects)
    for resource in VOLUMES:
        known.note_listed(resource)
    return known


def add(known: Cluster, *objects: Obj) -> None:
    for obj in objects:
        if "provisioner" in obj:
            known.set_storage_class(obj)
        elif "namespace" in obj["metadata"]:
            known.set_volume_claim(obj)
        else:
            known.set_volume(obj)


def place(known: Cluster, *volumes: str, **spec: Any) -> str | None:
    found = decide(known, claim("c"), volumes=uses(*volumes), **spec)
    return None if found is None else found.node


# -- bound volumes


def test_a_pod_goes_where_its_volumes_are() -> None:
    known = world(
        volume_claim("data", volume="v1"),
        volume("v1", zone="y", phase="Bound"),
        volume_claim("more", volume="v2"),
        volume("v2", host="c", phase="Bound"),
        a="x",
        b="y",
        c="y",
    )
    assert place(known, "data") == "b"
    assert place(known, "data", "more") == "c"
    assert place(known) == "a"
    known.remove_node("c")
    assert place(known, "more") is None
    text = "volume node affinity does not match"
    assert text in why(known, claim("c"), volumes=uses("more")).message


@pytest.mark.parametrize(
    ("labels", "where"),
    [
        ({ZONE: "y"}, "b"),
        ({ZONE: "y__z"}, "b"),
        ({ZONE: "q"}, "none"),
        ({"failure-domain.beta.kubernetes.io/zone": "y"}, "b"),
        ({"topology.kubernetes.io/region": "r"}, "none"),
    ],
)
def test_labels_of_a_volume_say_its_zone_where_nodes_have_any(
    labels: dict[str, str], where: str
) -> None:
    known = world(
        volume_claim("data", volume="v"),
        volume("v", labels=labels, phase="Bound"),
        a="x",
        b="y",
        none="",
    )
    assert place(known, "data") == where


# -- volumes that wait for a node


def test_a_volume_is_made_where_its_class_allows() -> None:
    known = world(
        storage_class("fast", zones=("y",)),
        storage_class("any"),
        volume_claim("data", class_name="fast"),
        volume_claim("free", class_name="any"),
        a="x",
        b="y",
    )
    assert place(known, "data") == "b"
    assert place(known, "free") == "a"
    add(known, storage_class("fast", zones=("q",)))
    assert place(known, "data") is None
    add(known, volume_claim("data", class_name="fast", node="a"))
    assert place(known, "data") is None, "its class does not allow it there"
    add(known, volume_claim("free", class_name="any", node="b"))
    assert place(known, "free") == "b", "it is being made there"


@pytest.mark.parametrize(
    ("has", "fits"),
    [
        ({}, True),
        ({"size": "2Gi"}, True),
        ({"size": "500Mi"}, False),
        ({"class_name": "other"}, False),
        ({"phase": "Released"}, False),
        ({"volumeMode": "Block"}, False),
        ({"accessModes": ["ReadOnlyMany"]}, False),
        ({"volumeAttributesClassName": "gold"}, False),
        ({"claimRef": {"namespace": "default", "name": "other"}}, False),
        ({"claimRef": {"namespace": "default", "name": "data"}, "phase": "Released"}, True),
    ],
)
def test_a_volume_that_is_there_is_taken_where_it_suits(has: Obj, *, fits: bool) -> None:
    known = world(
        storage_class("local", makes=False),
        volume_claim("data", class_name="local"),
        volume("v", **{"class_name": "local", "host": "b", **has}),
        a="x",
        b="y",
    )
    assert place(known, "data") == ("b" if fits else None)


def test_the_volume_that_another_gets_first_is_gone() -> None:
    known = world(
        storage_class("local", makes=False),
        *(volume_claim(name, class_name="local") for name in ("first", "data")),
        volume("v", class_name="local", host="a"),
        volume("w", class_name="local", host="b"),
        a="x",
        b="y",
    )
    coming(known, "first", "a")
    assert place(known, "data") == "b"


def test_pods_that_share_a_claim_go_where_the_first_goes() -> None:
    known = world(storage_class("any"), volume_claim("data", class_name="any"), a="x", b="y")
    coming(known, "data", "b")
    assert place(known, "data") == "b"


def test_a_claim_for_one_pod_is_used_by_one() -> None:
    known = world(
        volume_claim("data", volume="v", accessModes=["ReadWriteOncePod"]),
        volume("v", phase="Bound"),
        a="x",
    )
    assert place(known, "data") == "a"
    coming(known, "data", "a")
    assert place(known, "data") is None
    assert "ReadWriteOncePod and in use" in why(known, claim("c"), volumes=uses("data")).message


def coming(known: Cluster, volume_claim: str, where: str) -> None:
    """A pod that uses a volume is allocated and not bound yet."""
    known.set_claim(versioned(claim("held")))
    known.set_pod(versioned(pod("first", "held", volumes=uses(volume_claim))))
    known.hosts.place(known.pods["default", "first"], where)


# -- claims that keep a pod from every node


@pytest.mark.parametrize(
    ("objects", "says"),
    [
        ([], "PersistentVolumeClaim data does not exist: create it"),
        ([volume_claim("data")], "is not bound to a volume yet"),
        ([volume_claim("data", class_name="gone")], "is not bound to a volume yet"),
        (
            [storage_class("now", waits=False), volume_claim("data", class_name="now")],
            "is not bound to a volume yet",
        ),
        (
            [storage_class("any"), volume_claim("data", class_name="any", volume="v", bound=False)],
            "is not bound to a volume yet",
        ),
        ([volume_claim("data", volume="v")], "bound to volume v, which does not exist"),
        ([volume_claim("data", volume="v", phase="Lost")], "has lost its volume v"),
    ],
)
def test_a_claim_that_cannot_be_used_is_waited_for(objects: list[Obj], says: str) -> None:
    made = waiting(*objects)
    assert made.devices("p") == []
    assert made.api.writes.count("resourceclaims/status") == 0
    told = [e for e in made.recorder.events if e[2] == "WaitingForVolumeClaim"]
    assert {kind for kind, *_ in told} == {"Pod", "ResourceClaim"}
    assert all(says in message for *_, message in told)
    made.run(seconds=5.0)
    condition = made.condition("p")
    assert condition["reason"] == "WaitingForVolumeClaim"
    assert says in condition["message"]
    add(made.cluster, volume("v", phase="Bound", zone="y"), volume_claim("data", volume="v"))
    made.run()
    assert made.node_of("p") == "b"


def test_a_claim_that_is_being_deleted_is_not_used() -> None:
    body = volume_claim("data", volume="v")
    body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    made = waiting(body, volume("v", phase="Bound"))
    assert made.devices("p") == []
    assert "is being deleted" in made.recorder.events[-1][-1]


def test_the_claim_of_an_ephemeral_volume_is_made_for_its_pod() -> None:
    own = [{"name": "own", "ephemeral": {"volumeClaimTemplate": {}}}]
    made = waiting(volumes=own)
    assert "p-own is not made yet by Kubernetes" in made.recorder.events[-1][-1]
    add(made.cluster, volume("v"), volume_claim("p-own", volume="v", owner="another"))
    made.run(seconds=times.SAID_DETAILS)
    assert "p-own was not made for this pod" in made.recorder.events[-1][-1]
    add(made.cluster, volume_claim("p-own", volume="v", owner="uid-p"))
    made.run()
    assert made.node_of("p") == "a"


def waiting(*objects: Obj, listed: bool = True, volumes: list[Obj] | None = None) -> Bench:
    """A pod whose claim is called like it, and that uses the volume claim ``data``."""
    made = Bench()
    for name, zone in (("a", "x"), ("b", "y")):
        made.add_node(name, labels={HOST: name, ZONE: zone})
    add(made.cluster, *objects)
    for resource in VOLUMES if listed else ():
        made.cluster.note_listed(resource)
    made.run()
    made.api.writes.clear()
    made.serve("p", "p", volumes=volumes or uses("data"))
    return made


# -- what is mirrored


def test_trimmed_volumes_are_read_as_the_whole_ones() -> None:
    held: Obj = {"claimRef": {"kind": "x", "namespace": "default", "name": "c", "uid": "u"}}
    whole = volume("v", zone="y", labels={ZONE: "y"}, csi={"driver": "d" * 500}, **held)
    whole["metadata"]["annotations"] = {"note": "n" * 500}
    trimmed = Stored(PERSISTENT_VOLUMES)(whole)
    assert read_volume(trimmed) == read_volume(whole)
    assert len(str(trimmed)) < 0.5 * len(str(whole))
    selector = {"matchLabels": {"a": "b"}}
    asked = volume_claim("c", volume="v", node="n", owner="u", selector=selector)
    asked["metadata"]["annotations"]["volume.beta.kubernetes.io/storage-class"] = "old"
    asked["metadata"]["managedFields"] = [{"manager": "m" * 1000}]
    trimmed = Stored(PERSISTENT_VOLUME_CLAIMS)(asked)
    assert read_volume_claim(trimmed) == read_volume_claim(asked)
    assert read_volume_claim(asked).wish.class_name == "old"
    assert "managedFields" not in trimmed["metadata"]
    made = storage_class("fast", zones=("a", "b")) | {"parameters": {"type": "t" * 500}}
    trimmed = Stored(STORAGE_CLASSES)(made)
    assert read_storage_class(trimmed) == read_storage_class(made)
    assert "parameters" not in trimmed
