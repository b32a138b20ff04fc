"""Many large pods and claims of one namespace, each of them within its limits."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from controller.cluster import decoder as memory
from dra.claims.claims import read_claim
from dra.common.cache import decoded_weight
from dra.common.resources import PODS, RESOURCE_CLAIMS, Obj, Resource
from dra.pods.pods import UNREAD
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import (
    DRIVER,
    allocated,
    claim,
    first_available,
    pod,
    request,
    versioned,
)
from tests.controller.helpers.stored import Stored

KIB = 1024
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def labels(n: int) -> Obj:
    body = pod(f"p{n}", f"c{n}")
    body["metadata"]["labels"] = {f"{n}-{i}": "x" * 60 for i in range(60)}
    return body


def affinity(n: int) -> Obj:
    selects = {"matchLabels": {f"{n}-{i}": "x" for i in range(100)}}
    terms = [{"topologyKey": "zone", "labelSelector": selects}]
    return pod(f"p{n}", f"c{n}", affinity={"podAntiAffinity": {REQUIRED: terms}})


def small_parts(n: int) -> Obj:
    parts = {f"{n}-{i}": "x" for i in range(10)}
    tolerations = [{"key": f"{n}-{i}", "operator": "Exists"} for i in range(3)]
    return pod(f"p{n}", f"c{n}", nodeSelector=parts, overhead=parts, tolerations=tolerations)


def many_claims(n: int) -> Obj:
    containers = [{"name": "main", "image": "none"}]
    return pod(f"p{n}", *(f"{n}-{i}" for i in range(100)), containers=containers)


def selectors(n: int) -> Obj:
    texts = (f"'{n}-{i}' != ''" for i in range(20))
    return claim(f"c{n}", request("r", "mig-1g.5gb", *texts))


def finalizers(n: int) -> Obj:
    body = claim(f"c{n}")
    body["metadata"]["finalizers"] = [f"example.com/{n}-{i}" + "x" * 40 for i in range(60)]
    return body


def large_parameters(n: int) -> Obj:
    body = claim(f"c{n}")
    parameters = {"kind": f"{n:02}" * 2500}
    body["spec"]["devices"]["config"] = [{"opaque": {"driver": DRIVER, "parameters": parameters}}]
    return body


MADE: dict[str, tuple[Resource, Callable[[int], Obj]]] = {
    "labels": (PODS, labels),
    "affinity": (PODS, affinity),
    "small parts": (PODS, small_parts),
    "many claims": (PODS, many_claims),
    "selectors": (RESOURCE_CLAIMS, selectors),
    "finalizers": (RESOURCE_CLAIMS, finalizers),
    "parameters": (RESOURCE_CLAIMS, large_parameters),
}


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "NAMESPACE_BYTES", 40 * KIB)
    monkeypatch.setattr(memory, "ALL_BYTES", 80 * KIB)
    monkeypatch.setattr(memory, "LEAST_BYTES", 20 * KIB)


def together(*objects: Obj) -> int:
    """Memory of the parts of objects, roughly; one that several have counts once."""
    holders = (holder for obj in objects for holder in (obj["metadata"], obj["spec"]))
    parts = {id(part): part for holder in holders for part in holder.values()}
    large = (part for part in parts.values() if isinstance(part, dict | list))
    return sum(decoded_weight(msgspec.json.encode(part)) for part in large)


def trimmed(trim: Stored, body: Obj, namespace: str = "default") -> Obj:
    text = msgspec.json.encode(versioned(body))
    return trim(msgspec.json.decode(text.replace(b'"default"', f'"{namespace}"'.encode())))


@pytest.mark.parametrize("what", MADE)
def test_what_is_large_in_a_namespace_is_kept_within_its_allowance(what: str) -> None:
    """2,000 pods of 190 KiB each, or as many claims, took more memory than the controller has."""
    resource, make = MADE[what]
    trim = Stored(resource)
    whole = together(trimmed(Stored(resource), make(0)))
    kept = [trimmed(trim, make(n)) for n in range(40)]
    assert together(*kept) < 40 * KIB + 40 * 2 * KIB < 40 * whole
    assert together(kept[0]) == whole
    assert together(trimmed(trim, make(0), "another")) == whole, "who has few is read"
    del kept
    assert together(trimmed(trim, make(50))) >= whole, "what is gone counts no more"


def test_where_all_together_have_too_much_each_namespace_still_has_some() -> None:
    trim = Stored(PODS)
    kept = [trimmed(trim, affinity(10 * n + m), f"n{n}") for n in range(5) for m in range(9)]
    read = [sum(UNREAD not in each["spec"] for each in kept[n : n + 9]) for n in range(0, 45, 9)]
    assert read[0] == read[1] > read[3] == read[4] > 0


def test_users_are_told_and_what_they_are_told_to_do_helps() -> None:
    bench = Bench("node-a")
    pods, claims = Stored(PODS), Stored(RESOURCE_CLAIMS)

    def create(name: str, body: Obj, asks: Obj) -> None:
        body["metadata"]["name"] = asks["metadata"]["name"] = name
        body["spec"]["resourceClaims"] = [{"name": "c", "resourceClaimName": name}]
        bench.cluster.set_claim(claims(bench.api.put(RESOURCE_CLAIMS, asks)))
        bench.cluster.set_pod(pods(bench.api.put(PODS, body)))
        bench.run()

    def said(name: str) -> str:
        return next(
            m for kind, about, _, m in bench.recorder.events if (kind, about) == ("Pod", name)
        )

    held = [trimmed(pods, affinity(n)) for n in range(10)]
    create("p", affinity(20), claim("p"))
    assert "the large pods of its namespace take more than" in said("p")
    assert not bench.devices("p")
    held.clear()
    create("p", affinity(20), claim("p"))
    assert bench.devices("p")
    held = [trimmed(claims, selectors(n)) for n in range(10)]
    create("q", pod("q"), selectors(20))
    assert "the large claims of its namespace" in said("q")
    held.clear()
    create("q", pod("q"), selectors(20))
    assert bench.devices("q")


def test_classes_of_what_a_claim_has_stay_as_they_count_in_quotas() -> None:
    trim = Stored(RESOURCE_CLAIMS)
    texts = [f"'{i}' != ''" for i in range(100)]
    body = claim(
        "c",
        request("other", "gpu.dra.dev", *texts),
        request("one", "mig-1g.5gb", *texts),
        first_available("two", ("a", "mig-7g.40gb", {}), ("b", "mig-2g.10gb", {})),
    )
    held = allocated(versioned(body), "node-a", "gpu-0-mig-1g5gb-19-0", "gpu-0-mig-2g10gb-14-2")
    results = held["status"]["allocation"]["devices"]["results"]
    results[0]["request"], results[1]["request"] = "one", "two/b"
    kept = [selectors(n) for n in range(100)]
    crowd = [trim(versioned(each)) for each in kept]
    known = read_claim(trim(held))
    assert [r.name for r in known.requests] == ["one", "two"], "the namespace is not crowded"
    assert known.allocation is not None
    assert [d.class_name for d in known.allocation.devices] == ["mig-1g.5gb", "mig-2g.10gb"]
    assert crowd
