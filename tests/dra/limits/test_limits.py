"""Pods that ask by limits become pods with claims."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dra.allocator.problem import examine
from dra.cel.kinds import Kinds
from dra.cel.selectors import Selectors
from dra.claims.claims import read_claim
from dra.claims.classes import generated_classes, read_class
from dra.claims.reader import Fault, Reader
from dra.claims.wants import ClaimWants
from dra.common.resources import Obj
from dra.limits.rewriting import MIRROR, is_template_name, rewritten, template
from dra.pods.pods import read_pod
from tests.controller.helpers.objects import claim, cluster, pod, versioned
from tests.dra.limits.limitcases import CASES, Case, pod_of, seen

DRIVER = "mig.dra.dev"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_pod_that_was_rewritten_stays_as_it_is(case: Case) -> None:
    once = rewritten(pod_of(case))
    assert rewritten(once) == once


@pytest.mark.parametrize("case", [case for case in CASES if case.claims], ids=lambda c: c.name)
def test_every_template_is_one_that_the_controller_makes(case: Case) -> None:
    for each in case.claims:
        name = each.partition("=")[2]
        assert is_template_name(name)
        assert len(each.partition("=")[0]) <= 63
        assert template(name, "default", driver=DRIVER)["metadata"]["name"] == name


def test_claims_that_are_there_stay() -> None:
    pod = pod_of(CASES[0])
    pod["spec"]["resourceClaims"] = [{"name": "nic", "resourceClaimTemplateName": "nic"}]
    (container,) = pod["spec"]["containers"]
    container["resources"]["claims"] = [{"name": "nic"}]
    claims, given, _ = seen(rewritten(pod))
    assert claims == ["nic=nic", "mig-1g-5gb-0=nvidia.com-mig-1g.5gb"]
    assert given == {"a": ["nic", "mig-1g-5gb-0"]}


def test_a_pod_that_a_kubelet_made_is_left_alone() -> None:
    pod = pod_of(CASES[0])
    pod["metadata"]["annotations"][MIRROR] = "x"
    assert rewritten(pod) == pod


def wants(name: str) -> ClaimWants:
    """Wants of a claim of a template, as the controller reads it."""
    classes = [read_class(c, DRIVER) for c in generated_classes(DRIVER, ["1g.5gb", "3g.20gb"])]
    reader = Reader(DRIVER, Kinds(Selectors()), {c.name: c for c in classes})
    metadata = {"namespace": "default", "name": "c", "uid": "u"}
    spec = template(name, "default", driver=DRIVER)["spec"]["spec"]
    found = reader.read(read_claim({"metadata": metadata, "spec": spec}))
    assert isinstance(found, ClaimWants)
    return found


@pytest.mark.parametrize("name", ["mine", "nvidia.com-mig-1g", "nvidia.com-gpumem-0", "nvidia.com"])
def test_other_names_are_no_templates_of_ours(name: str) -> None:
    assert not is_template_name(name)
    with pytest.raises(ValueError, match="no template for limits"):
        template(name, "default", driver=DRIVER)


def asking(name: str, **exactly: Any) -> Obj:
    """The claim that Kubernetes makes of a template, with what the API server fills in."""
    spec = copy.deepcopy(template(name, "default", driver=DRIVER)["spec"]["spec"])
    (request,) = spec["devices"]["requests"]
    request["exactly"] |= {"allocationMode": "ExactCount", "count": 1} | exactly
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "uid-p", "controller": True}
    metadata = {"name": "p-c", "namespace": "default", "ownerReferences": [owner]}
    return {**claim("p-c"), "metadata": metadata, "spec": spec}


REPLACED: dict[str, tuple[Obj, bool]] = {
    "as it is": ({}, False),
    "another profile": ({"deviceClassName": "mig-7g.40gb"}, True),
    "two": ({"count": 2}, True),
    "all": ({"allocationMode": "All", "count": 0}, True),
    "another selector": ({"selectors": [{"cel": {"expression": "true"}}]}, True),
}


@pytest.mark.parametrize("labels", [{f"{DRIVER}/limits": "claims"}, {}], ids=["opted", "apart"])
@pytest.mark.parametrize("case", REPLACED)
@pytest.mark.parametrize("name", ["nvidia.com-mig-1g.5gb", "nvidia.com-gpumem-8000-gpu-spread"])
def test_a_claim_of_a_template_that_was_replaced_is_not_served(
    name: str, case: str, labels: dict[str, str]
) -> None:
    """Whoever charges by limits would charge what the name says."""
    changed, replaced = REPLACED[case]
    known = cluster("a")
    known.set_namespace({"metadata": {"name": "default", "labels": labels}})
    known.set_claim(versioned(asking(name, **changed)))
    body = versioned(pod("p"))
    body["spec"]["resourceClaims"] = [{"name": "c", "resourceClaimTemplateName": name}]
    body["status"] = {"resourceClaimStatuses": [{"name": "c", "resourceClaimName": "p-c"}]}
    reader = Reader(DRIVER, known.fleet.kinds, known.classes)
    found = examine(read_pod(body), known, reader).found
    told = found.obstacle.message if isinstance(found, Fault) else ""
    assert (f"{name!r} stands for limits of pods, and was replaced" in told) is (
        replaced and bool(labels)
    )
