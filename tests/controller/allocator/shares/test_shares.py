"""Several claims on one GPU: counted by the controller, by memory, cores and namespace."""

from __future__ import annotations

from typing import Any

import pytest

from dra.common.resources import Obj
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.deciding import decide, devices, why
from tests.controller.helpers.objects import (
    claim,
    device_class,
    gpu,
    mignode,
    pod,
    request,
    with_gpus,
)

SHARE = "gpu-share.dra.dev"


def shared(minor: int = 0, shares: int = 4, name: str = "node-a") -> Any:
    return gpu(minor, name, mig=False, shares=shares)


def asking(memory: str = "", cores: str = "") -> Obj:
    amounts = {k: v for k, v in (("memory", memory), ("cores", cores)) if v}
    return request("r", SHARE, **({"capacity": {"requests": amounts}} if amounts else {}))


def configured(**parameters: Any) -> list[Obj]:
    head = {"apiVersion": "mig.dra.dev/v1alpha1", "kind": "GpuConfig"}
    return [{"opaque": {"driver": "mig.dra.dev", "parameters": head | parameters}}]


def bench(*gpus: Any) -> Bench:
    made = Bench("node-a")
    made.cluster.set_mignode(mignode("node-a", *(gpus or (shared(),))))
    return made


def place(on: Bench, name: str, asked: Obj, *, namespace: str = "default", **more: Any) -> Obj:
    body = claim(name, asked, **more)
    body["metadata"]["namespace"] = namespace
    of_pod = pod(f"p-{name}", name)
    of_pod["metadata"]["namespace"] = namespace
    on.claim(body)
    on.pod(of_pod)
    on.run()
    status = on.api.objects["resourceclaims", name].get("status", {})
    results = status.get("allocation", {}).get("devices", {}).get("results", [])
    return results[0] if results else {}


def test_claims_of_a_namespace_share_a_gpu_until_its_shares_are_given() -> None:
    on = bench()
    found = [place(on, f"c{n}", asking()) for n in range(5)]
    assert [f.get("device") for f in found] == ["gpu-0"] * 4 + [None]
    assert len({f["shareID"] for f in found[:4]}) == 4
    assert found[0]["consumedCapacity"]["memory"] == "10Gi"
    assert any("all 4 shares are in use" in m for *_, m in on.recorder.events)
    on.delete_pod("p-c1")
    on.run(seconds=60)
    assert on.devices("c4") == ["gpu-0"]


def test_namespaces_share_only_where_the_class_lets_them() -> None:
    on = bench()
    body = device_class("open", "device.attributes['mig.dra.dev'].type == 'gpu-share'")
    body["spec"]["config"] = configured(share={"tenants": "any"})
    body["metadata"] |= {"uid": "u", "resourceVersion": "1"}
    on.cluster.set_class(body)
    assert place(on, "a", asking())["device"] == "gpu-0"
    assert place(on, "b", asking(), namespace="other") == {}
    assert "its shares are another namespace's" in " ".join(m for *_, m in on.recorder.events)
    on.delete_pod("p-a")
    on.run(seconds=60)
    assert on.api.objects["resourceclaims", "b"]["status"]["allocation"]
    on = bench()
    on.cluster.set_class(body)
    assert place(on, "a", request("r", "open"))["device"] == "gpu-0"
    assert place(on, "b", request("r", "open"), namespace="other")["device"] == "gpu-0"
    assert place(on, "c", asking()) == {}


def test_a_claim_cannot_open_itself_to_other_namespaces() -> None:
    on = bench()
    config = configured(share={"tenants": "any"})
    assert place(on, "a", asking(), config=config) == {}
    assert "only a DeviceClass may say it" in " ".join(m for *_, m in on.recorder.events)


def test_a_claim_has_one_share_of_a_gpu_and_several_of_a_pod_may_have_one() -> None:
    known = with_gpus(shared(0, 2), shared(1, 2))
    two = claim("a", request("r", SHARE, count=2))
    assert sorted(devices(decide(known, two))) == ["gpu-0", "gpu-1"]
    known = with_gpus(shared(0, 2))
    assert "no room" in why(known, two).message
    both = [claim("a", asking()), claim("b", asking())]
    assert devices(decide(known, *both)) == ["gpu-0", "gpu-0"]
    assert "no room" in why(known, *both, claim("c", asking())).message


@pytest.mark.parametrize(
    ("policy", "pool"), [("binpack", "node-a-pool"), ("spread", "node-b-pool")]
)
def test_nodes_are_packed_or_spread_by_the_memory_of_shares(policy: str, pool: str) -> None:
    on = Bench("node-a", "node-b")
    for name in ("node-a", "node-b"):
        on.cluster.set_mignode(mignode(name, shared(name=name)))
    assert place(on, "a", asking("1Gi"))["pool"] == "node-a-pool"
    placement = {"nodes": {"policy": policy, "by": ["gpu-memory"]}}
    assert place(on, "b", asking("2Gi"), config=configured(placement=placement))["pool"] == pool


def test_the_next_leader_counts_the_same_with_and_without_consumed_capacity() -> None:
    for kept in (True, False):
        on = bench()
        place(on, "a", asking("30Gi"))
        stored = on.api.objects["resourceclaims", "a"]
        if not kept:  # as an API server does that has no consumable capacity
            result = stored["status"]["allocation"]["devices"]["results"][0]
            del result["consumedCapacity"], result["shareID"]
        new = on.succeeded_by("node-a")
        new.cluster.set_mignode(mignode("node-a", shared()))
        new.run()
        fits = place(new, "b", asking("11Gi")) != {}
        assert fits is not kept, "without it the share is one part in four"
