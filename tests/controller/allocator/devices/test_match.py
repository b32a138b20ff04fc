"""``matchAttribute``: devices that agree are found exactly when they exist, however many GPUs."""

from __future__ import annotations

from itertools import combinations

from dra.gpu.inventory import Gpu
from tests.controller.helpers.deciding import decide
from tests.controller.helpers.objects import (
    claim,
    cluster,
    filled,
    gpu,
    mignode,
    request,
    with_gpus,
)

SAME_GPU = {"matchAttribute": "mig.dra.dev/parentUUID"}
ROOT = "resource.kubernetes.io/pcieRoot"


def on_switches(node: str, *switches: str) -> list[Gpu]:
    """Empty GPUs below the given PCIe roots."""
    return [gpu(n, node, pcie_root=switch) for n, switch in enumerate(switches)]


def test_pairs_each_on_a_gpu_of_its_own_are_found_on_a_large_node() -> None:
    """GPUs to the power of pairs: more than anyone can try."""
    pairs = [(f"a{n}", f"b{n}") for n in range(6)]
    constraints = [{**SAME_GPU, "requests": [*pair]} for pair in pairs]
    constraints += [
        {"distinctAttribute": "mig.dra.dev/parentUUID", "requests": [one[0], other[0]]}
        for one, other in combinations(pairs, 2)
    ]
    requests = [request(name, "mig-3g.20gb") for pair in pairs for name in pair]
    full = [filled(n, *range(7)) for n in range(5)]
    wanted = claim("c", *requests, constraints=constraints)
    decision = decide(with_gpus(*full, *(gpu(n) for n in range(5, 11))), wanted)
    assert decision is not None
    on = {pick.request: pick.gpu for pick in decision.picks}
    assert all(on[a] == on[b] for a, b in pairs)
    assert len(set(on.values())) == 6
    assert decide(with_gpus(*full, *(gpu(n) for n in range(5, 10))), wanted) is None


def test_slices_below_one_switch_are_found_on_each_node_by_its_own_switches() -> None:
    """Nodes with GPUs in equal states are not alike where their wiring is compared."""
    apart = on_switches("node-a", "pci0000:00", "pci0000:80")
    together = on_switches("node-b", "pci0000:00", "pci0000:00")
    requests = [request("r", "mig-4g.20gb", count=2)]
    for kind, home in (("matchAttribute", "node-b"), ("distinctAttribute", "node-a")):
        known = cluster("node-a", "node-b")
        known.set_mignode(mignode("node-a", *apart))
        known.set_mignode(mignode("node-b", *together))
        decision = decide(known, claim("c", *requests, constraints=[{kind: ROOT}]))
        assert decision is not None
        assert decision.node == home
