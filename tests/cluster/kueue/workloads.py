"""Jobs and groups of pods for Kueue's queue, and what has become of them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from dra.common.resources import at
from hack.cluster.api import Api, ApiError
from tests.cluster.harness.pods import pod
from tests.cluster.harness.workload import SLEEPING
from tests.cluster.kueue.program import GROUP, QUEUE

JOBS = "/apis/batch/v1/namespaces/default/jobs"
WORKLOADS = f"/apis/{GROUP}/namespaces/default/workloads"
GATE = "kueue.x-k8s.io/admission"
_QUEUED = {"kueue.x-k8s.io/queue-name": QUEUE}


def create_job(
    api: Api,
    name: str,
    claims: Mapping[str, str],
    *,
    limits: Mapping[str, str] | None = None,
    pods: int = 1,
) -> str:
    """A Job of that many pods, each with claims made from templates, or with limits."""
    sources = {each: {"resourceClaimTemplateName": source} for each, source in claims.items()}
    spec = pod(name, SLEEPING, claims=sources)["spec"]
    spec["containers"][0]["resources"]["limits"] = dict(limits or {})
    body = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": _QUEUED},
        "spec": {
            "suspend": True,
            "parallelism": pods,
            "completions": pods,
            "template": {"spec": spec},
        },
    }
    api.request("POST", JOBS, body=body)
    return name


def create_group(api: Api, name: str, claim: str, *, pods: int) -> list[str]:
    """Plain pods that Kueue admits together, each with a claim made from the template."""
    names = [f"{name}-{number}" for number in range(pods)]
    for each in names:
        body = pod(each, SLEEPING, claims={"slice": {"resourceClaimTemplateName": claim}})
        group = {"kueue.x-k8s.io/pod-group-name": name, "kueue.x-k8s.io/managed": "true"}
        body["metadata"] |= {
            "labels": _QUEUED | group,
            "annotations": {"kueue.x-k8s.io/pod-group-total-count": str(pods)},
            "finalizers": ["kueue.x-k8s.io/managed"],
        }
        body["spec"]["schedulingGates"] = [{"name": GATE}]
        api.create(body)
    return names


def admitted(api: Api) -> set[str]:
    """The Jobs that Kueue has let start."""
    jobs = api.request("GET", JOBS)["items"]
    return {each["metadata"]["name"] for each in jobs if not each["spec"]["suspend"]}


def waits(api: Api, name: str) -> bool:
    """True if Kueue says of a Job's or group's workload that the quota is not enough."""
    for each in api.request("GET", WORKLOADS)["items"]:
        if name in (o["name"] for o in each["metadata"]["ownerReferences"]):
            return any(
                "insufficient" in condition.get("message", "")
                for condition in at(each, "status", "conditions")
                if (condition["type"], condition["status"]) == ("QuotaReserved", "False")
            )
    return False


def allocated(api: Api, owner: str) -> list[str]:
    """Devices of the claims whose pods' names begin so."""
    return [
        result["device"]
        for claim in api.list("ResourceClaim")
        if claim["metadata"]["ownerReferences"][0]["name"].startswith(owner)
        for result in at(claim, "status", "allocation", "devices", "results")
    ]


def end(api: Api, owner: str) -> None:
    """Have the pods whose names begin so end well, as a kubelet tells it."""
    for each in api.list("Pod"):
        name = each["metadata"]["name"]
        if name.startswith(owner):
            status = {"status": {"phase": "Succeeded"}}
            api.patch("Pod", name, status, subresource="status")


def remove_all(api: Api) -> bool:
    """Remove Jobs and pods, and what Kueue keeps them by; True once nothing of them is left."""
    api.request("DELETE", f"{JOBS}?propagationPolicy=Background")
    for each in api.list("Pod"):
        name = each["metadata"]["name"]
        with contextlib.suppress(ApiError):  # gone with its Job
            api.patch("Pod", name, {"metadata": {"finalizers": None}})
            api.delete("Pod", name, grace=0)
    workloads = api.request("GET", WORKLOADS)["items"]
    return not (workloads or api.list("Pod") or api.list("ResourceClaim"))
