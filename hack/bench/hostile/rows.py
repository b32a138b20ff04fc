"""Rows of the bench: loads, what is wanted beside each, and the ground that it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from dra.gpu.geometry import Geometry
from dra.gpu.inventory import Inventory
from hack.bench.control import objects
from hack.bench.hostile import held, large_pods, loads
from hack.bench.hostile.ground import Ground, half_full_nodes
from hack.bench.hostile.loads import Size

HASTENED = 60
"""Factor by which limits of time are divided where a load waits for them."""


@dataclass(frozen=True, slots=True)
class Load:
    """A row: what is ``wanted``, and ``run``, which says what was seen.

    ``nodes`` makes so many nodes; ``hastened`` is what the controller's limits of time for holding
    back slices are divided by.
    """

    name: str
    wanted: str
    run: Callable[[Ground, Size], str]
    nodes: Callable[[Geometry, int], list[Inventory]] = half_full_nodes
    hastened: int = 1


def two_empty_gpus(shape: Geometry, _: int) -> list[Inventory]:
    """One node of two empty GPUs, however many are asked for."""
    node = objects.inventory("node-0000", shape)
    return [replace(node, gpus=node.gpus[:2])]


LOADS = (
    Load("costly selector", "others <= 1 s, memory flat", loads.costly_selector),
    Load("parameters of others", "memory flat", loads.parameters_of_others),
    Load("pair of a PCIe root", "found", loads.pairs_of_a_root),
    Load("four of a named GPU", "found", loads.four_of_a_gpu),
    Load("many wait, others end", "<= 2 s", loads.many_that_wait),
    Load("many of one gang", "<= 2 s", loads.many_of_a_gang),
    Load("3 x 8 alternatives", "others <= 250 ms a decision", loads.many_alternatives),
    Load("pods that shun all", "others <= 1 s, memory flat", large_pods.many_shunned),
    Load("10,000 node terms", "others <= 1 s", large_pods.many_terms),
    Load(
        "one held for ever",
        "the rest used, overtaken 20 times and while slices end",
        held.held_for_ever,
        nodes=two_empty_gpus,
        hastened=HASTENED,
    ),
    Load("kube-scheduler's finalizer", "allocated, few states", held.protected_claim),
)
