"""Sizes of gangs: what pods and objects say, and what is wrong with it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Raw
from msgspec.json import encode

from dra.common.resources import Obj
from dra.gangs.membership import (
    COSCHEDULING,
    KOORDINATOR,
    KUBERNETES,
    MOST_PODS,
    VOLCANO,
    WORKLOADS,
    GroupKind,
    Membership,
    PodGroups,
    Unclear,
    find_minimum,
    keep_pod_group,
    read_membership,
    read_pod_group,
)
from tests.dra.gangs.test_membership import COUNT, OWN, pod


def member(obj: Obj) -> Membership:
    found = read_membership(obj)
    assert found is not None
    return found


LABELLED = member(pod({OWN: "g", COUNT: "3"}))
BY_OBJECT = member(pod(schedulingGroup={"podGroupName": "g"}))


def group(kind: GroupKind, name: str = "g", **spec: Any) -> Obj:
    metadata = {"namespace": "team", "name": name, "uid": "u", "resourceVersion": "1"}
    return {"metadata": {**metadata, "managedFields": [1]}, "spec": {**spec, "other": "x"}}


def known(kind: GroupKind, *objects: Obj) -> PodGroups:
    groups = PodGroups()
    groups.kinds.add(kind)
    for obj in objects:
        groups.set(read_pod_group(kind, keep_pod_group(Raw(encode(obj)))))
    return groups


@pytest.mark.parametrize(
    ("stated", "told"),
    [
        ({"3", "4"}, "differ in label mig.dra.dev/pod-group-min-count ('3', '4')"),
        ({str(n) for n in range(1, 6)}, "('1', '2', '3' and 2 more)"),
        ({None, "3"}, "has no label mig.dra.dev/pod-group-min-count"),
        ({"0"}, "is '0': set a whole number from 1 to 400"),
        ({"-1"}, "is '-1'"),
        ({"many"}, "is 'many'"),
        ({"٣"}, "set a whole number"),
        ({"9" * 5000}, "set a whole number"),
        ({"10000"}, "needs 10000 pods at once, and at most 400 are allocated together"),
    ],
)
def test_what_pods_state_wrongly_is_said_with_its_remedy(
    stated: set[str | None], told: str
) -> None:
    found = find_minimum(LABELLED, stated, PodGroups())
    assert isinstance(found, Unclear)
    assert told in found.message
    assert len(found.message) < 300


def test_a_number_without_a_name_says_which_label_to_add() -> None:
    found = find_minimum(member(pod({COUNT: "2"})), {"2"}, PodGroups())
    assert isinstance(found, Unclear)
    assert "mig.dra.dev/pod-group with one value" in found.message


@pytest.mark.parametrize(
    ("kind", "spec", "number"),
    [
        (KUBERNETES, {"schedulingPolicy": {"gang": {"minCount": 4}}}, 4),
        (KUBERNETES, {"schedulingPolicy": {"basic": {}}}, 1),
        (KUBERNETES, {}, 1),
        (VOLCANO, {"minMember": 4}, 4),
        (VOLCANO, {"minMember": 0}, 1),
        (VOLCANO, {"minMember": "4"}, 1),
        (COSCHEDULING, {"minMember": 2}, 2),
        (KOORDINATOR, {"minMember": 2}, 2),
    ],
)
def test_objects_say_how_many_in_their_own_fields(
    kind: GroupKind, spec: dict[str, Any], number: int
) -> None:
    read = read_pod_group(kind, keep_pod_group(Raw(encode(group(kind, **spec)))))
    assert read.counts == {"": number}


def test_a_workload_says_it_for_each_of_its_groups() -> None:
    gangs = [{"name": "a", "policy": {"gang": {"minCount": 3}}}, {"name": "b", "policy": {}}]
    groups = known(WORKLOADS, group(WORKLOADS, "w", podGroups=gangs))
    for part, number in (("a", 3), ("b", 1)):
        asked = member(pod(workloadRef={"name": "w", "podGroup": part}))
        assert find_minimum(asked, (), groups) == number
    missing = find_minimum(member(pod(workloadRef={"name": "w", "podGroup": "c"})), (), groups)
    assert isinstance(missing, Unclear)
    assert "has no pod group 'c'; it has a, b" in missing.message


def test_an_object_counts_until_it_is_gone() -> None:
    obj = group(KUBERNETES, schedulingPolicy={"gang": {"minCount": MOST_PODS + 1}})
    groups = known(KUBERNETES, obj)
    assert isinstance(find_minimum(BY_OBJECT, (), groups), Unclear)
    read = read_pod_group(KUBERNETES, group(KUBERNETES, schedulingPolicy={"gang": {"minCount": 2}}))
    assert groups.set(read)
    assert not groups.set(read)
    assert find_minimum(BY_OBJECT, (), groups) == 2
    groups.remove(KUBERNETES, "team", "g")
    assert isinstance(find_minimum(BY_OBJECT, (), groups), Unclear)
