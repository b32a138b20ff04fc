from __future__ import annotations

from typing import Any

from dra.claims.allocation import (
    AllocatedDevice,
    Allocation,
    allocation_config,
    read_allocation,
    write_allocation,
)
from dra.claims.claims import claim_names, read_claim

DEVICE = AllocatedDevice("r0", "mig.dra.dev", "node-a", "gpu-0-mig-1g5gb-19-4")


def claim(**changes: Any) -> dict[str, Any]:
    """A ResourceClaim as the API server returns it."""
    return {
        "metadata": {
            "namespace": "default",
            "name": "c",
            "uid": "u-1",
            "resourceVersion": "7",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "ownerReferences": [
                {"kind": "Job", "uid": "j", "name": "x", "controller": True},
                {"kind": "Pod", "uid": "p-1", "name": "p", "controller": True},
            ],
        },
        "spec": {
            "devices": {
                "requests": [
                    {
                        "name": "r0",
                        "exactly": {
                            "deviceClassName": "mig-1g.5gb",
                            "count": 2,
                            "selectors": [{"cel": {"expression": "true"}}],
                        },
                    }
                ]
            }
        },
        **changes,
    }


def test_what_we_cannot_allocate_says_why() -> None:
    def unsupported(request: dict[str, Any]) -> str:
        spec = {"devices": {"requests": [{"name": "r0", **request}]}}
        return read_claim(claim(spec=spec)).requests[0].unsupported

    exactly = {"deviceClassName": "mig-1g.5gb"}
    assert unsupported({"exactly": exactly}) == ""
    assert unsupported({"exactly": {**exactly, "allocationMode": "All"}}) == ""
    assert "Most" in unsupported({"exactly": {**exactly, "allocationMode": "Most"}})
    assert unsupported({"exactly": {**exactly, "adminAccess": True}}) == ""
    assert "firstAvailable" in unsupported({"someday": {}})
    alternatives = [{"name": "a", **exactly}, {"name": "b", **exactly, "allocationMode": "Most"}]
    assert "Most" in unsupported({"firstAvailable": alternatives})


def test_an_allocation_names_one_node_and_carries_its_time() -> None:
    written = write_allocation([DEVICE], "node-a", timestamp="2026-01-01T00:00:00Z")
    assert written["allocationTimestamp"] == "2026-01-01T00:00:00Z"
    assert written["nodeSelector"] == {
        "nodeSelectorTerms": [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-a"]}]}
        ]
    }
    assert "config" not in written["devices"]
    assert read_allocation(written) == Allocation((DEVICE,), "node-a")


def test_only_the_exact_node_selector_names_a_node() -> None:
    field = {"key": "metadata.name", "operator": "In", "values": ["a"]}
    term = {"matchFields": [field]}
    for selector in (
        {"nodeSelectorTerms": [term, term]},
        {"nodeSelectorTerms": [{"matchFields": [field, field]}]},
        {"nodeSelectorTerms": [{"matchFields": [{**field, "values": ["a", "b"]}]}]},
        {"nodeSelectorTerms": [{**term, "matchExpressions": [{"key": "k"}]}]},
    ):
        assert read_allocation({"nodeSelector": selector}).node == ""
    assert read_allocation({"nodeSelector": {"nodeSelectorTerms": [term]}}).node == "a"


def test_devices_of_other_drivers_are_told_apart_and_subrequests_stripped() -> None:
    other = AllocatedDevice("net/fast", "nic.example.com", "node-a", "eth0")
    allocation = Allocation((other, DEVICE), "node-a")
    assert allocation.of_driver("mig.dra.dev") == (DEVICE,)
    assert other.base_request == "net"


def test_configuration_of_classes_comes_before_that_of_the_claim() -> None:
    one = {"opaque": {"driver": "mig.dra.dev", "parameters": {"a": 1}}}
    two = {"opaque": {"driver": "mig.dra.dev", "parameters": {"a": 2}}, "requests": ["r0", "gone"]}
    everyone = {"opaque": {"driver": "mig.dra.dev", "parameters": {"a": 3}}}
    foreign = {"opaque": {"driver": "x", "parameters": {}}, "requests": ["elsewhere"]}
    assert allocation_config(["r0"], [two, foreign, everyone], {"r0": [one]}) == [
        {"source": "FromClass", "requests": ["r0"], **one},
        {"source": "FromClaim", "opaque": two["opaque"], "requests": ["r0"]},
        {"source": "FromClaim", "opaque": everyone["opaque"], "requests": []},
    ]


def test_a_pods_claims_are_named_directly_or_by_what_its_template_made() -> None:
    pod = {
        "spec": {
            "resourceClaims": [
                {"name": "direct", "resourceClaimName": "shared"},
                {"name": "made", "resourceClaimTemplateName": "t"},
                {"name": "waiting", "resourceClaimTemplateName": "t"},
                {"name": "none", "resourceClaimTemplateName": "t"},
            ]
        },
        "status": {
            "resourceClaimStatuses": [
                {"name": "made", "resourceClaimName": "p-made-x"},
                {"name": "none"},
            ]
        },
    }
    assert claim_names(pod) == {"direct": "shared", "made": "p-made-x", "waiting": None}
