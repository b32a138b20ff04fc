"""The manifests of the handbook on a real control plane: each gets what it asks for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest
import yaml

from dra.common.resources import Obj, at
from dra.gpu.names import MigDevice, parse_device
from hack.cluster.api import Api, ApiError
from hack.cluster.binaries import Binaries
from hack.cluster.chart import REPOSITORY, render
from hack.cluster.installation import apply, path
from tests.cluster.harness.schedulersite import Site, site

EXAMPLES = REPOSITORY / "docs/examples"
NAMESPACE = "gpus"
PLAIN = "plain"
REFUSING = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingAdmissionPolicy",
    "metadata": {"name": "late"},
    "spec": {
        "matchConstraints": {
            "resourceRules": [
                {
                    "apiGroups": [""],
                    "apiVersions": ["v1"],
                    "resources": ["pods"],
                    "operations": ["CREATE"],
                }
            ]
        },
        "validations": [
            {"expression": "!object.metadata.name.startsWith('refused')", "message": "too late"}
        ],
    },
}
BINDING = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingAdmissionPolicyBinding",
    "metadata": {"name": "late"},
    "spec": {"policyName": "late", "validationActions": ["Deny"]},
}


def example(name: str) -> list[Obj]:
    return [*yaml.safe_load_all((EXAMPLES / f"{name}.yaml").read_text())]


@pytest.fixture(scope="module")
def two(binaries: Binaries, root: Path) -> Iterator[Site]:
    """Two nodes of two GPUs, which the controller allocates, and a namespace that opted in."""
    nodes = {"one": ("controller", 2), "other": ("controller", 2)}
    with site(
        binaries, root / "ex", nodes, {}, schedulers=("default-scheduler", "volcano")
    ) as made:
        for each in render():
            if each["metadata"]["name"].endswith("pod-limits"):
                apply(made.api, each)
        for each in [*example("limits-namespace"), REFUSING, BINDING]:
            apply(made.api, each)
        made.wait("templates of profiles", lambda: "nvidia.com-mig-1g.5gb" in templates(made.api))
        made.wait("account of pods", lambda: admitted(made.api))
        made.wait("policy that refuses late", lambda: not admitted(made.api, "refused"))
        yield made


def templates(api: Api) -> set[str]:
    found = api.list("ResourceClaimTemplate", namespace=NAMESPACE)
    return {each["metadata"]["name"] for each in found}


def admitted(api: Api, name: str = "tried") -> bool:
    """True if a pod that asks by limits is rewritten and taken."""
    (body,) = example("limits-profile")
    body["metadata"]["name"] = name
    try:
        made = api.request("POST", f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All", body=body)
    except ApiError:
        return False
    return bool(made["spec"].get("resourceClaims"))


def converted(name: str) -> list[Obj]:
    """The objects of an example, converted, in a namespace that did not opt in."""
    command = [sys.executable, "-m", "cli", "convert", str(EXAMPLES / f"{name}.yaml")]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=REPOSITORY)
    made: list[Obj] = [*yaml.safe_load_all(run.stdout)]
    for each in made:
        each["metadata"]["namespace"] = PLAIN
    return made


def pods(api: Api, name: str) -> list[Obj]:
    """The pods of that name, or that something of that name has made."""
    found = api.list("Pod", namespace=NAMESPACE)
    return [each for each in found if each["metadata"]["name"].startswith(name)]


def devices(api: Api, pod: Obj) -> dict[str, list[MigDevice]]:
    """Devices that each container of a pod has, by its claims."""
    claims = {
        each["name"]: api.get(
            "ResourceClaim", each["resourceClaimName"], namespace=pod["metadata"]["namespace"]
        )
        for each in at(pod, "status", "resourceClaimStatuses")
    }
    found: dict[str, list[MigDevice]] = {}
    for container in [*at(pod, "spec", "initContainers"), *at(pod, "spec", "containers")]:
        mine = found.setdefault(container["name"], [])
        for entry in at(container, "resources", "claims"):
            status = claims[entry["name"]]["status"]
            for result in status["allocation"]["devices"]["results"]:
                if entry.get("request") not in (None, result["request"]):
                    continue
                device = parse_device(result["device"])
                assert isinstance(device, MigDevice)
                mine.append(device)
    return found


class Applied:
    """Objects of an example, which are deleted again, with the claims that they led to."""

    def __init__(self, site: Site, name: str) -> None:
        self.site = site
        self.objects = example(name)

    def __enter__(self) -> Self:
        for each in self.objects:
            apply(self.site.api, each)
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.objects:
            self.site.api.request("DELETE", f"{path(each)}?propagationPolicy=Background")
        api = self.site.api
        self.site.wait("end of its pods", self._pods_are_gone)
        self.site.wait(
            "end of its claims", lambda: not api.list("ResourceClaim", namespace=NAMESPACE)
        )

    def _pods_are_gone(self) -> bool:
        """No kubelet runs here, so that nobody else confirms the end of a pod."""
        found = [p for p in pods(self.site.api, "") if "deletionTimestamp" in p["metadata"]]
        for each in found:
            self.site.api.delete("Pod", each["metadata"]["name"], namespace=NAMESPACE, grace=0)
        return not pods(self.site.api, "")

    def bound(self, name: str, count: int = 1) -> list[Obj]:
        """The pods of that name once they are on nodes."""
        api = self.site.api

        def are_bound() -> bool:
            found = pods(api, name)
            return len(found) == count and all(each["spec"].get("nodeName") for each in found)

        self.site.wait(f"{count} pods {name} on nodes", are_bound)
        return pods(api, name)


def labels(found: dict[str, list[MigDevice]]) -> dict[str, list[str]]:
    return {name: [each.profile_label for each in mine] for name, mine in found.items()}


@pytest.mark.parametrize(
    ("name", "got"), [("limits-profile", "1g5gb"), ("limits-percentage", "3g20gb")]
)
def test_limits_of_a_profile_or_a_percentage(two: Site, name: str, got: str) -> None:
    with Applied(two, name) as applied:
        (pod,) = applied.bound(name)
        assert labels(devices(two.api, pod)) == {"main": [got, got]}
        for claim in two.api.list("ResourceClaim", namespace=NAMESPACE):
            (owner,) = claim["metadata"]["ownerReferences"]
            assert (owner["uid"], owner["controller"]) == (pod["metadata"]["uid"], True)


def test_limits_of_several_containers(two: Site) -> None:
    with Applied(two, "limits-containers") as applied:
        (pod,) = applied.bound("limits-containers")
        found = devices(two.api, pod)
        assert found["warm-up"] == found["left"]
        assert found["left"] != found["right"]
        assert len(two.api.list("ResourceClaim", namespace=NAMESPACE)) == 2


def test_limits_in_what_makes_pods(two: Site) -> None:
    with Applied(two, "limits-workloads") as applied:
        counts = {"deployment": 1, "statefulset": 1, "daemonset": 2, "job": 1}
        for kind, count in counts.items():
            for pod in applied.bound(f"limits-{kind}", count):
                assert labels(devices(two.api, pod)) == {"main": ["1g5gb"]}


@pytest.mark.parametrize("name", ["limits-memory", "memory-claim"])
def test_memory_gets_the_smallest_profile_that_has_it(two: Site, name: str) -> None:
    with Applied(two, name) as applied:
        (pod,) = applied.bound(name)
        (found,) = labels(devices(two.api, pod)).values()
        assert len(found) == 2
        assert set(found) <= {"1g10gb", "2g10gb"}


@pytest.mark.parametrize(
    ("name", "got"),
    [
        ("device-plugin", {"main": ["1g5gb"]}),
        ("instaslice", {"main": ["1g5gb", "1g5gb"]}),
        ("hami", {"two": ["1g10gb", "1g10gb"], "one": ["1g5gb"]}),
    ],
)
def test_manifests_of_other_systems_unchanged(
    two: Site, name: str, got: dict[str, list[str]]
) -> None:
    with Applied(two, f"others/{name}") as applied:
        (pod,) = applied.bound(name)
        assert labels(devices(two.api, pod)) == got


@pytest.mark.parametrize(
    ("name", "got"),
    [
        ("volcano", [{"main": ["1g5gb"]}]),
        ("instaslice-rewritten", [{"main": ["1g5gb"]}, {"main": ["1g5gb", "1g5gb"]}]),
        ("nvidia-dra", [{"small": ["1g5gb"], "large": ["2g10gb"]}]),
    ],
)
def test_manifests_of_other_systems_converted(
    two: Site, name: str, got: list[dict[str, list[str]]]
) -> None:
    """Volcano's has its scheduler's name still, which is served and nobody here has."""
    api = two.api
    apply(api, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": PLAIN}})
    made = converted(f"others/{name}")
    for each in made:
        apply(api, each)

    def allocated() -> bool:
        claims = api.list("ResourceClaim", namespace=PLAIN)
        wanted = sum(len(each["spec"]["resourceClaims"]) for each in made if each["kind"] == "Pod")
        given = [at(each, "status", "allocation", default=None) for each in claims]
        return len(given) == wanted and all(given)

    try:
        two.wait("claims", allocated)
        found = sorted(api.list("Pod", namespace=PLAIN), key=lambda each: each["metadata"]["name"])
        assert [labels(devices(api, pod)) for pod in found] == got
        if name == "volcano":
            assert not found[0]["spec"].get("nodeName"), "nobody is there to bind it"
    finally:
        for each in made:
            api.request("DELETE", f"{path(each)}?gracePeriodSeconds=0")
        two.wait("end of claims", lambda: not api.list("ResourceClaim", namespace=PLAIN))


def test_policies_by_annotation(two: Site) -> None:
    """A slice on one node fills it, so that the next goes there, to its other GPU."""
    with Applied(two, "limits-profile") as first:
        (before,) = first.bound("limits-profile")
        taken = {each.minor for each in devices(two.api, before)["main"]}
        assert len(taken) == 1
        with Applied(two, "limits-policies") as applied:
            (pod,) = applied.bound("limits-policies")
            (mine,) = devices(two.api, pod)["main"]
            assert pod["spec"]["nodeName"] == before["spec"]["nodeName"]
            assert mine.minor not in taken
            for each in (applied, first):  # the end of the first waits for that of all pods
                for obj in each.objects:
                    two.api.request("DELETE", f"{path(obj)}?gracePeriodSeconds=0")
            applied.objects.clear()
            first.objects.clear()


def test_a_quota_of_the_class_holds_and_one_of_the_resource_does_not(two: Site) -> None:
    api = two.api
    with Applied(two, "limits-quota") as quota:
        (made,) = quota.objects
        made["spec"]["hard"]["requests.nvidia.com/mig-1g.5gb"] = "0"
        apply(api, made)
        two.wait("quota that counts", lambda: at(api.request("GET", path(made)), "status", "used"))
        with Applied(two, "limits-profile"):

            def refused() -> bool:
                events = api.list("Event", namespace=NAMESPACE)
                return any(
                    each["reason"] == "FailedResourceClaimCreation"
                    and "exceeded quota" in str(each.get("message"))
                    for each in events
                )

            two.wait("event of the quota", refused)
            assert len(api.list("ResourceClaim", namespace=NAMESPACE)) == 1


def test_a_pod_that_is_refused_after_it_was_rewritten_leaves_nothing(two: Site) -> None:
    api = two.api
    (body,) = example("limits-memory")
    body["metadata"]["name"] = "refused"
    body["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"] = 7777
    with pytest.raises(ApiError, match="too late"):
        apply(api, body)
    # The same with another name is served, by which time the first would have left something.
    body["metadata"]["name"] = "taken"
    body["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"] = 7776
    apply(api, body)
    two.wait("the other", lambda: "nvidia.com-gpumem-7776" in templates(api))
    two.wait("its claims", lambda: len(api.list("ResourceClaim", namespace=NAMESPACE)) == 2)
    assert "nvidia.com-gpumem-7777" not in templates(api)
    api.delete("Pod", "taken", namespace=NAMESPACE, grace=0)
    two.wait("end of claims", lambda: not api.list("ResourceClaim", namespace=NAMESPACE))
