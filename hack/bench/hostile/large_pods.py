"""Pods of half a megabyte of terms: what they cost the controller, and whoever asks beside them."""

from __future__ import annotations

from dra.common.resources import PODS, RESOURCE_CLAIMS, Obj
from hack.bench.control import objects
from hack.bench.hostile.ground import SMALL, Ground, each
from hack.bench.hostile.loads import Size, beside

_TERMS = 10_000
_SHUNNING = 60
_CHOOSY = 8
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def many_shunned(ground: Ground, _: Size) -> str:
    """Pods without claims, on nodes, that shun all pods of all namespaces in many ways."""
    nodes = [inventory.node for inventory in ground.nodes]
    before = ground.memory()
    names = [f"shuns-{n}" for n in range(_SHUNNING)]
    where = {name: nodes[n % len(nodes)] for n, name in enumerate(names)}
    each(lambda name: ground.api.create(PODS, _shunning(str(name), where[str(name)])), names)
    waits = beside(ground, "shunning")
    grown = ground.memory() - before if ground.is_alive else None
    ground.end(names)
    return f"others {waits}, +{grown} MiB"


def many_terms(ground: Ground, _: Size) -> str:
    """Pods with claims that name their nodes by thousands of alternatives, of which none holds."""
    names = [f"choosy-{n}" for n in range(_CHOOSY)]
    for name in names:
        ground.api.create(RESOURCE_CLAIMS, objects.claim(name, SMALL))
        ground.api.create(PODS, _choosy(name))
    waits = beside(ground, "choosy")
    ground.end(names)
    return f"others {waits}"


def _shunning(name: str, node: str) -> Obj:
    terms = [
        {"topologyKey": f"{name}-{n}", "namespaceSelector": {}, "labelSelector": {}}
        for n in range(_TERMS)
    ]
    body = objects.pod(name)
    body["spec"] |= {
        "resourceClaims": [],
        "nodeName": node,
        "affinity": {"podAntiAffinity": {_REQUIRED: terms}},
        "containers": [{"name": "c", "image": "none"}],
    }
    return body


def _choosy(name: str) -> Obj:
    terms = [
        {"matchExpressions": [{"key": f"{name}-{n}", "operator": "Exists"}]} for n in range(_TERMS)
    ]
    body = objects.pod(name, resourceClaimName=name)
    body["spec"]["affinity"] = {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": terms}}}
    return body
