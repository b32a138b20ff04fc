"""Pools of a node where kube-scheduler allocates: what cluster-autoscaler asks of them.

"Limitations" of cluster-autoscaler/docs/dra_support.md (1.36): each node of a group publishes an
identical set of devices, all of them local to the node, and all shared counters of a pool are
identical.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from dra.gpu.inventory import Inventory
from dra.resourceslices.partitions import offered
from dra.resourceslices.resourceslices import Features, SliceLayout
from sim.nvml.products import product_names
from tests.dra.gpus import node_of, product_geometry, sliced_gpu


def specs(inventory: Inventory) -> list[dict[str, Any]]:
    made = SliceLayout(offered(inventory, {}, taints=True), Features())
    return [made.spec(index, generation=1) for index in range(len(made))]


def nodes(product: str) -> list[list[dict[str, Any]]]:
    """Slices of two nodes with four such GPUs each."""
    geometry = product_geometry(product)
    gpus = [sliced_gpu(minor, geometry) for minor in range(4)]
    return [specs(node_of(*gpus, name=name)) for name in ("node-a", "node-b")]


def without_identity(published: Any) -> Any:
    """Content of a slice but for what cluster-autoscaler replaces in the copy of a node."""
    return re.sub(r"node-[ab]", "node", repr(published))


@pytest.mark.parametrize("product", [n for n in product_names() if product_geometry(n).profiles])
def test_nodes_of_a_group_publish_the_same_and_nothing_that_is_not_local(product: str) -> None:
    first, second = nodes(product)
    assert without_identity(first) == without_identity(second) != "[]"
    assert [s.get("nodeName") for s in first] == ["node-a"] * len(first)
    assert not any(s.get("allNodes") or s.get("nodeSelector") for s in first)


@pytest.mark.parametrize("product", [n for n in product_names() if product_geometry(n).profiles])
def test_all_shared_counters_of_a_pool_are_identical(product: str) -> None:
    sets = [c["counters"] for spec in nodes(product)[0] for c in spec.get("sharedCounters", ())]
    assert len(sets) == 4
    assert all(each == sets[0] for each in sets)
