"""Worth of the order of published devices: ``python -m hack.bench.order``.

kube-scheduler takes the first device that fits, on the node that LeastAllocated chooses. The same
requests meet the devices as the plugin publishes them and as they come: GPU by GPU, sorted by name.
Requests name a profile, or the least memory that will do. ``lost`` is relative to sorted names.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import click

from dra.allocator.scoring.geometry_index import GpuId
from dra.allocator.scoring.moves import MoveTable
from dra.gpu.geometry import Geometry, Placement, Profile
from dra.gpu.inventory import Gpu, Inventory
from dra.gpu.names import DEFAULT_DRIVER
from dra.resourceslices.partitions import Partition, offered
from dra.resourceslices.resourceslices import Features, SliceLayout
from hack.bench.fleets.fleet import KUBE, Fleet, geometry
from hack.bench.fleets.scenarios import MIXES, steady
from hack.bench.placement import percent, show

Listed = Sequence[tuple[int, Profile, Placement]]
"""The devices of a node in list order: GPU, profile, placement."""


class ListFleet(Fleet):
    """Nodes whose devices are taken in list order. Each of them is listed alike."""

    def __init__(
        self, table: MoveTable, listed: Listed, *, gpus: int, per_node: int, by_memory: bool
    ) -> None:
        super().__init__(table, KUBE, gpus=gpus, per_node=per_node)
        self._matching = {
            profile.id: [
                (minor, each, placement)
                for minor, each, placement in listed
                if (each.memory_mib >= profile.memory_mib if by_memory else each.id == profile.id)
            ]
            for profile in table.geometry.profiles
        }

    def _kube(self, profile: Profile) -> tuple[GpuId, Profile, Placement] | None:
        for node in sorted(self._nodes, key=lambda n: (self._pods[n], n)):
            gpus = self._nodes[node]
            usages = [self._usage(gpu) for gpu in gpus]
            for minor, each, placement in self._matching[profile.id]:
                if self.table.geometry.fits(usages[minor], each, placement):
                    return gpus[minor], each, placement
        return None


def published(shape: Geometry, gpus: int) -> list[Partition]:
    """The devices of a node in the order of its ResourceSlices."""
    inventory = Inventory(
        "node",
        "node",
        DEFAULT_DRIVER,
        tuple(
            Gpu(minor=n, uuid=f"GPU-{n}", mig_enabled=True, mig_pending=True, geometry=shape)
            for n in range(gpus)
        ),
    )
    layout = SliceLayout(offered(inventory, {}, taints=True), Features())
    order = sorted(range(len(layout)), key=layout.names().__getitem__)
    return [p for index in order for p in layout.contents[index].partitions]


def by_name(partitions: Sequence[Partition]) -> list[Partition]:
    """GPU by GPU, sorted by device name: the lowest start first."""
    return sorted(partitions, key=lambda p: (p.gpu.minor, p.name))


def listed(partitions: Sequence[Partition]) -> Listed:
    """The list of them that a scheduler sees."""
    return [(p.gpu.minor, p.profile, p.placement) for p in partitions if p.profile and p.placement]


def compare(
    table: MoveTable, *, gpus: int, per_node: int, replications: int, by_memory: bool
) -> dict[str, dict[str, float]]:
    """Accepted requests and slices at two loads, means over the mixes, a row per order."""
    devices = published(table.geometry, per_node)
    orders = {"by name": listed(by_name(devices)), "published": listed(devices)}
    result: dict[str, dict[str, float]] = {}
    for name, order in orders.items():
        row = result.setdefault(name, {})
        for load in (0.85, 1.0):
            pairs = [
                percent(
                    [
                        steady(
                            ListFleet(
                                table, order, gpus=gpus, per_node=per_node, by_memory=by_memory
                            ),
                            weights,
                            gpus=gpus,
                            load=load,
                            seed=seed,
                        )
                        for seed in range(replications)
                    ]
                )
                for weights in MIXES.values()
            ]
            row[f"requests load {load}"] = fmean(p[0] for p in pairs)
            row[f"slices load {load}"] = fmean(p[1] for p in pairs)
    for row in result.values():
        for load in (0.85, 1.0):
            lost = 100 - result["by name"][f"slices load {load}"]
            row[f"lost {load}"] = (100 - row[f"slices load {load}"]) / lost if lost else 1.0
    return result


@click.command()
@click.option("--replications", default=40, show_default=True, help="Seeds per order and mix.")
@click.option("--nodes", default=1, show_default=True, help="Nodes.")
@click.option("--per-node", default=8, show_default=True, help="GPUs of a node.")
@click.option("--product", default="A100-SXM4-80GB", show_default=True)
def main(replications: int, nodes: int, per_node: int, product: str) -> None:
    """Compare the published order of devices with that of their names."""
    table = MoveTable(geometry(product))
    gpus = nodes * per_node
    click.echo(f"{nodes} nodes of {per_node} x {product}, {replications} replications, first fit")
    for by_memory, what in ((False, "a profile"), (True, "the least memory")):
        show(
            f"requests for {what}: accepted, %",
            compare(
                table,
                gpus=gpus,
                per_node=per_node,
                replications=replications,
                by_memory=by_memory,
            ),
        )


if __name__ == "__main__":
    main()
