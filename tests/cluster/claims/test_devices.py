"""Several devices, of one GPU or of others, and alternatives: what is allocated is bound."""

from __future__ import annotations

import pytest

from dra.common.resources import Obj
from hack.cluster.api import Api, ApiError
from sim.processes import wait_for
from tests.cluster.claims.bodies import PARENT, Serve, exactly, first_available, gpus, spread_for
from tests.cluster.harness.pods import pod
from tests.cluster.harness.workload import SLEEPING

AT_LEAST_12GI = "device.capacity['mig.dra.dev'].memory.compareTo(quantity('12Gi')) >= 0"


TOLERATION = {"key": "example.com/hot", "operator": "Exists", "effect": "NoExecute"}


def test_a_claim_that_a_pod_has_under_two_names_is_bound_with_what_it_asks_for(
    serve: Serve,
) -> None:
    assert len(serve("twice", exactly("one", "mig-1g.5gb"), names=("one", "other"))) == 1


def test_pairs_each_on_one_gpu_are_bound(serve: Serve) -> None:
    requests = [exactly(n, "mig-4g.20gb") for n in ("a", "b")]
    requests += [exactly(n, "mig-3g.20gb") for n in ("c", "d")]
    pairs = [{"matchAttribute": PARENT, "requests": pair} for pair in (["a", "d"], ["b", "c"])]
    results = serve("pairs", *requests, constraints=pairs)
    on = {r["request"]: r["device"].partition("-mig-")[0] for r in results}
    assert on["a"] == on["d"] != on["b"] == on["c"]


def test_devices_of_different_gpus_are_bound(served: Api, serve: Serve) -> None:
    try:
        results = serve(
            "apart",
            exactly("r", "mig-1g.5gb", count=2),
            constraints=[{"distinctAttribute": PARENT}],
        )
    except ApiError as error:
        pytest.skip(f"this API server has no distinctAttribute: {error}")
    constraints = served.get("ResourceClaim", "apart")["spec"]["devices"]["constraints"]
    if "distinctAttribute" not in constraints[0]:
        pytest.skip("this API server drops distinctAttribute")
    assert sorted(gpus(results)) == ["gpu-0", "gpu-1"]


def test_a_chosen_alternative_with_its_configuration_is_bound(served: Api, serve: Serve) -> None:
    results = serve(
        "either",
        first_available(
            "r",
            {"name": "big", "deviceClassName": "mig-7g.40gb", "count": 3},
            {"name": "small", "deviceClassName": "mig-1g.5gb"},
        ),
        config=[spread_for("r/small"), spread_for("r/big"), spread_for("r")],
    )
    assert [r["request"] for r in results] == ["r/small"]
    config = served.get("ResourceClaim", "either")["status"]["allocation"]["devices"]["config"]
    assert [c["requests"] for c in config] == [["r/small"], ["r"]]


def test_tolerations_are_in_the_result_that_is_bound(served: Api, serve: Serve) -> None:
    (result,) = serve("tolerant", exactly("r", "mig-1g.5gb", tolerations=[TOLERATION]))
    (request,) = served.get("ResourceClaim", "tolerant")["spec"]["devices"]["requests"]
    kept = request["exactly"].get("tolerations", [])
    assert result.get("tolerations", []) == kept


def test_a_pod_says_why_it_waits_until_it_does_not(served: Api, serve: Serve) -> None:
    held = [exactly("r", "mig-7g.40gb", count=2)]
    for name in ("first", "second"):
        serve(name, *held)
    served.create(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "waits", "namespace": "default"},
            "spec": {"devices": {"requests": held}},
        }
    )
    served.create(pod("waits", SLEEPING, claims={"gpu": {"resourceClaimName": "waits"}}))

    def told(status: str) -> Obj | None:
        conditions = served.get("Pod", "waits")["status"].get("conditions", [])
        found = [c for c in conditions if c["type"] == "mig.dra.dev/ClaimsAllocated"]
        return found[0] if found and found[0]["status"] == status else None

    assert "default/first" in wait_for("reason", lambda: told("False"))["message"]
    served.delete("Pod", "first", grace=0)
    served.delete("ResourceClaim", "first")
    wait_for("end of the wait", lambda: told("True"))
    served.delete("Pod", "waits", grace=0)
    served.delete("ResourceClaim", "waits")


def test_the_smallest_slice_with_enough_memory_is_bound(serve: Serve) -> None:
    selector = [{"cel": {"expression": AT_LEAST_12GI}}]
    (result,) = serve("memory", exactly("r", "mig.dra.dev", selectors=selector))
    assert "-mig-3g20gb-" in result["device"]
    (result,) = serve("round", exactly("r", "mig-min-10gb"))
    assert "-mig-1g10gb-" in result["device"]
