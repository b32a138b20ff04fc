"""Admission policies of the chart: the finalizer of new claims, claims of pods' limits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dra.claims.classes import looks_ours
from dra.common.resources import Obj
from hack.cluster.chart import find, pod_spec, render
from hack.release import configuration
from tests.deploy.chart.charts import VALUES, rendered, rendered_for

FINALIZER_FLAG = "--finalizer-at-creation"
POLICY_KINDS = {"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"}
OF_CLAIMS = "claim-finalizer"


def policy(objects: list[Obj]) -> Obj:
    found: Obj = find(objects, "MutatingAdmissionPolicy", OF_CLAIMS)["spec"]
    return found


def of_class(objects: list[Obj]) -> str:
    """The condition on the names of classes."""
    (found,) = (c for c in policy(objects)["matchConditions"] if c["name"] == "class")
    return str(found["expression"])


@pytest.mark.parametrize("name", VALUES)
def test_the_controller_knows_whether_there_is_the_policy(name: str) -> None:
    there = {e["kind"] for e in rendered(name) if e["metadata"]["name"].endswith(OF_CLAIMS)}
    assert there in (set(), POLICY_KINDS)
    (container,) = pod_spec(rendered(name), "controller")["containers"]
    assert (FINALIZER_FLAG in container["args"]) is bool(there)
    assert bool(there) is (name not in {"scheduler", "bare"})


@pytest.mark.parametrize(
    ("version", "beta", "served"),
    [("1.34", True, ""), ("1.35", False, ""), ("1.35", True, "v1beta1"), ("1.36", False, "v1")],
)
def test_mutating_policies_are_there_where_the_api_server_takes_them(
    tmp_path: Path, version: str, *, beta: bool, served: str
) -> None:
    objects = rendered_for(tmp_path, version, beta=beta)
    found = [each for each in objects if each["kind"] in POLICY_KINDS]
    versions = {each["apiVersion"].rpartition("/")[2] for each in found}
    assert (versions, len(found)) == (({served}, 6) if served else (set(), 0))
    (container,) = pod_spec(objects, "controller")["containers"]
    assert (FINALIZER_FLAG in container["args"]) is bool(served)


@pytest.mark.parametrize(
    "name",
    [
        *("mig-1g.5gb", "mig-1g.5gb-me", "mig-7g.141gb", "mig-min-20gb", "mig.dra.dev"),
        *("gpu.dra.dev", "mig-min-20gb-mine", "mig.nvidia.com", "gpu.nvidia.com", "mig-small"),
        *("amig-1g.5gb", "migxdra.dev", "mig-1gx5gb", ""),
        *("gpu-share.dra.dev", "mig-share.dra.dev", "mig-shares.dra.dev"),
    ],
)
def test_the_classes_that_the_controller_makes_are_known_by_their_names(name: str) -> None:
    (pattern,) = set(re.findall(r"matches\('([^']+)'\)", of_class(rendered("defaults"))))
    assert (re.search(pattern, name) is not None) is looks_ours(name)


def test_other_names_are_taken_from_the_values() -> None:
    assert of_class(rendered("everything")).count('in ["team-slices","other.example.com"]') == 2
    assert of_class(rendered("defaults")).count("in []") == 2


def test_the_finalizer_is_that_of_the_driver() -> None:
    (mutation,) = policy(rendered("renamed"))["mutations"]
    assert '"other.example.com/allocation"' in mutation["applyConfiguration"]["expression"]


POLICY = "MutatingAdmissionPolicy"
OF_PODS = "pod-limits"


def kinds(objects: list[Obj]) -> set[str]:
    """Kinds of what makes claims of limits."""
    return {each["kind"] for each in objects if each["metadata"]["name"].endswith(OF_PODS)}


@pytest.mark.parametrize("name", VALUES)
def test_the_policy_of_limits_is_there(name: str) -> None:
    assert kinds(rendered(name)) == {POLICY, f"{POLICY}Binding"}


def test_it_is_not_there_where_nobody_wants_it() -> None:
    assert kinds(render({"podLimits": {"enabled": False}})) == set()


def test_it_is_asked_for_pods_of_namespaces_that_opted_in() -> None:
    objects = render({"driverName": "a.example"})
    binding = find(objects, f"{POLICY}Binding", OF_PODS)["spec"]
    selector = binding["matchResources"]["namespaceSelector"]
    assert selector == {"matchLabels": {"a.example/limits": "claims"}}
    policy = find(objects, POLICY, OF_PODS)["spec"]
    assert (policy["failurePolicy"], policy["reinvocationPolicy"]) == ("Fail", "Never")


def test_the_tables_of_configurations_are_those_of_their_types() -> None:
    told = "run .venv/bin/python -m hack.release.configuration"
    assert configuration.TARGET.read_text() == configuration.text(), told


def test_configurations_are_refused_for_this_driver_alone() -> None:
    policy = find(rendered("renamed"), "ValidatingAdmissionPolicy", "-configuration")["spec"]
    assert policy["failurePolicy"] == "Ignore"
    (condition,) = policy["matchConditions"]
    assert 'driver.orValue("") == "other.example.com"' in condition["expression"]
