"""Nodes and GPUs that cannot serve a pod, and what is said about them."""

from __future__ import annotations

import pytest

from dra.claims.reasons import Reason
from dra.common.resources import Obj
from tests.controller.helpers.deciding import decide, why
from tests.controller.helpers.objects import claim, cluster, gpu, instance, mignode, node, request


def test_a_pod_that_is_bound_gets_its_slices_on_its_node_or_not_at_all() -> None:
    known = cluster("node-a", "node-b")
    known.set_node(node("node-b", cpu="0"))
    decision = decide(known, claim("c"), nodeName="node-b")
    assert decision is not None
    assert decision.node == "node-b"


@pytest.mark.parametrize(
    ("spec", "barred"),
    [
        ({"unschedulable": True}, "node unschedulable"),
        ({"taints": [{"key": "x", "effect": "NoSchedule"}]}, "untolerated taint x=:NoSchedule"),
        ({"taints": [{"key": "x", "effect": "NoExecute"}]}, "untolerated taint x=:NoExecute"),
    ],
)
def test_a_pod_that_names_its_node_itself_gets_nothing_where_that_is_barred_to_it(
    spec: Obj, barred: str
) -> None:
    known = cluster("node-a", "node-b")
    known.set_node(node("node-b", **spec))
    assert decide(known, claim("c"), nodeName="node-b") is None
    assert f"node-b: {barred}" in why(known, claim("c"), nodeName="node-b").message
    all_of_them = [{"operator": "Exists"}]
    assert decide(known, claim("c"), nodeName="node-b", tolerations=all_of_them) is not None
    other = {"key": "y", "operator": "Exists"}
    assert decide(known, claim("c"), nodeName="node-b", tolerations=[other]) is None


def test_more_than_one_gpu_can_hold_is_told_as_never_where_one_is_to_give_all() -> None:
    known = cluster("node-a")
    known.set_mignode(mignode("node-a", gpu(0), gpu(1)))
    same = [{"matchAttribute": "mig.dra.dev/parentUUID"}]
    found = why(known, claim("c", request("a", "mig-4g.20gb", count=2), constraints=same))
    assert found.reason is Reason.UNSUPPORTED
    assert "2 x 4g.20gb can never be served: one GPU is to give all, and none has" in found.message
    assert found.message.endswith("in several claims")


def test_of_many_nodes_a_few_are_told_gpu_by_gpu_and_the_others_in_short() -> None:
    names = [f"node-{n:02}" for n in range(40)]
    known = cluster(*names)
    full = instance("7g.40gb", 0, uid="other")
    half = instance("4g.20gb", 0, uid="other")
    for number, name in enumerate(names):
        held = (full if number % 2 else half,)
        known.set_mignode(mignode(name, gpu(0, name, instances=held), gpu(1, name, mig=False)))
    message = why(known, claim("c", request("r", "mig-7g.40gb"))).message
    assert message.startswith("40 nodes - 32 nodes: no room for 7g.40gb; has no such device (MIG")
    assert "; 8 nodes: gpu-0 no room for 7g.40gb (blocked by claim" in message
    together = request("r", "mig-3g.20gb", count=2)
    same = [{"matchAttribute": "mig.dra.dev/parentUUID"}]
    third = instance("3g.20gb", 0, uid="other")
    for name in names:
        known.set_mignode(mignode(name, gpu(0, name, instances=(third,))))
    message = why(known, claim("c", together, constraints=same)).message
    assert message.startswith("40 nodes - 40 nodes: no room for 2 x 3g.20gb together with the same")
