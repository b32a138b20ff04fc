"""Writes to the API server that one pod with a slice costs in its life, by whoever makes them."""

from __future__ import annotations

from collections import Counter

from dra.common.resources import MIG_NODES, PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, Obj
from dra.kube.client import KubeApi
from dra.kube.reflector import Change, Reflector
from sim.cluster.cluster import ClusterShape, running_cluster
from tests.helpers.waiting import wait_for

CONTROLLER, NODE_PROGRAM = "mig-dra-controller", "mig.dra.dev/kubelet-plugin"
WRITES = {
    f"{CONTROLLER}: patch resourceclaims.resource.k8s.io": 2,  # finalizer and node; finalizer off
    f"{CONTROLLER}: patch resourceclaims.resource.k8s.io/status": 1,  # the allocation
    f"{CONTROLLER}: create events": 1,  # tells the pod what it got
    f"{NODE_PROGRAM}: patch resourceclaims.resource.k8s.io/status": 2,  # devices on and off
    f"{NODE_PROGRAM}: update mignodes.mig.dra.dev/status": 2,  # the slice made and removed
}
MOST = 8
PASSING = {"preparing", "reclaiming"}
KEPT = "tests.example.com/kept"
OF_NO_POD = ("leases", "deviceclasses")
"""Written whether there are pods or not: at intervals, and after the start."""


def template() -> Obj:
    request = {"name": "r", "exactly": {"deviceClassName": "mig-1g.5gb"}}
    return {
        "metadata": {"name": "small", "namespace": "default"},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }


def pod() -> Obj:
    container = {"name": "c", "image": "i", "resources": {"claims": [{"name": "gpu"}]}}
    claims = [{"name": "gpu", "resourceClaimTemplateName": "small"}]
    return {
        "metadata": {"name": "p", "namespace": "default"},
        "spec": {"containers": [container], "resourceClaims": claims},
    }


def writes(api: KubeApi) -> Counter[str]:
    """Writes of the driver's programs so far."""
    found: Counter[str] = Counter()
    for agent, counted in api.read("/debug/writes")["writers"].items():
        if agent in {CONTROLLER, NODE_PROGRAM}:
            found.update({f"{agent}: {what}": count for what, count in counted.items()})
    return Counter({w: n for w, n in found.items() if not any(o in w for o in OF_NO_POD)})


def mignode(api: KubeApi) -> Obj:
    [node] = api.list(MIG_NODES).items
    return node


def instances(node: Obj) -> list[Obj]:
    gpus = node.get("status", {}).get("gpus", ())
    return [instance for gpu in gpus for instance in gpu.get("instances", ())]


def devices(api: KubeApi) -> list[Obj]:
    claims = api.list(RESOURCE_CLAIMS).items
    return [d for c in claims for d in c.get("status", {}).get("devices", ())]


def life(api: KubeApi) -> Counter[str]:
    """Writes for one pod from its creation to its end.

    Without those of a MigNode that say that its slice is being made, or being removed: a look at
    the hardware comes now and then at that moment, more often on a slow machine.
    """
    api.create(RESOURCE_CLAIM_TEMPLATES, template())
    before, passing = writes(api), Counter[str]()

    def note(change: Change) -> None:
        if change.new is not None and PASSING & {i["state"] for i in instances(change.new)}:
            passing[f"{NODE_PROGRAM}: update mignodes.mig.dra.dev/status"] += 1

    watch = Reflector(api, MIG_NODES, on_event=note)
    watch.start()
    assert watch.wait_synced(None)
    live(api, before)
    wait_for("the watch", lambda: watch.store.list() == [mignode(api)])
    watch.stop()
    assert passing.total() <= len(PASSING), "one write for each state, at the most"
    return writes(api) - before - passing


def live(api: KubeApi, before: Counter[str]) -> None:
    """Have a pod run, and end."""
    api.create(PODS, pod())
    wait_for("the slice in the claim's status", lambda: devices(api))
    wait_for("the slice in the MigNode", lambda: len(instances(mignode(api))) == 1)
    [claim] = api.list(RESOURCE_CLAIMS).items
    finalizers = claim["metadata"]["finalizers"]
    hold(api, claim, [*finalizers, KEPT])
    api.delete(PODS, "p", namespace="default")
    wait_for("the slice out of the claim's status", lambda: not devices(api))
    wait_for("the controller's leave", lambda: kept_by(api) == [KEPT])
    hold(api, claim, [])
    wait_for("the claim to be gone", lambda: not api.list(RESOURCE_CLAIMS).items)
    wait_for("the pod to be gone", lambda: not api.list(PODS).items)
    wait_for("an empty MigNode", lambda: not instances(mignode(api)))
    event = f"{CONTROLLER}: create events"
    wait_for("the event", lambda: writes(api)[event] > before[event])


def hold(api: KubeApi, claim: Obj, finalizers: list[str]) -> None:
    """Keep a claim: once it is gone the node takes nothing out of its status any more."""
    patch = {"metadata": {"finalizers": finalizers}}
    api.patch(RESOURCE_CLAIMS, claim["metadata"]["name"], patch, namespace="default")


def kept_by(api: KubeApi) -> list[str]:
    [claim] = api.list(RESOURCE_CLAIMS).items
    return [f for f in claim["metadata"]["finalizers"] if f.startswith(("mig.dra.dev", KEPT))]


def test_a_pods_life_costs_at_most_eight_writes_of_both_programs() -> None:
    with running_cluster(ClusterShape(nodes=1, gpus=("A100-SXM4-40GB",))) as cluster:
        made = life(cluster.api)
    assert made == WRITES
    assert made.total() <= MOST
