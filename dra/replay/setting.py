"""Other GPUs than those of a recording: fewer, more, or cut once for all. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from dra.gpu.geometry import Geometry
from dra.gpu.inventory import Gpu, InstanceState, Inventory
from dra.gpu.layouts import PlacingError, place
from dra.replay.form import NodeState, Recording, RecordingError


@dataclass(frozen=True, slots=True)
class Setting:
    """Differences from the recording: a ``policy`` for all, and a number of ``gpus`` or ``nodes``.

    Nodes are taken in name order, and copied where there are too few. ``layout``: profiles with
    their number; each GPU has these slices and no others.
    """

    policy: str = ""
    gpus: int | None = None
    nodes: int | None = None
    layout: tuple[tuple[str, int], ...] = ()

    @property
    def has_other_gpus(self) -> bool:
        return self.gpus is not None or self.nodes is not None or bool(self.layout)


AS_IT_WAS = Setting()


class Gpus:
    """The nodes of a play, made of those that are recorded."""

    def __init__(self, recording: Recording, setting: Setting) -> None:
        self._layout = setting.layout
        self._shapes: dict[Geometry, Geometry] = {}
        self._places: dict[str, dict[str, set[str]]] = {}
        lines = (*recording.state, *recording.events)
        nodes: dict[str, dict[str, None]] = {}  # a node may tell its GPUs one after the other
        for line in (n for n in lines if isinstance(n, NodeState) and n.mignode is not None):
            found = _read(line)
            gpus = found.gpus if found is not None else ()
            nodes.setdefault(line.node, {}).update(dict.fromkeys(g.name for g in gpus))
        every = [[(name, gpu) for gpu in nodes[name]] for name in sorted(nodes)]
        if setting.gpus is not None:
            every = [[each] for node in every for each in node]
        number = setting.gpus if setting.gpus is not None else setting.nodes
        for index in range(len(every) if number is None else number if every else 0):
            turn, at = divmod(index, len(every))
            for name, gpu in every[at]:
                own = f"{name}-copy-{turn}" if turn else name
                self._places.setdefault(name, {}).setdefault(own, set()).add(gpu)

    def of(self, line: NodeState) -> Iterator[tuple[str, Inventory | None]]:
        """The node of ``line`` and its copies, as far as they are played.

        A copy has no instances, and stays when the node is gone.
        """
        inventory = _read(line)
        for name, gpus in self._places.get(line.node, {}).items():
            if inventory is None:
                if name == line.node:
                    yield name, None
                continue
            kept = tuple(self._cut(g) for g in inventory.gpus if g.name in gpus)
            if name != line.node:
                kept = tuple(replace(g, instances=(), idle=(), unavailable="") for g in kept)
            yield name, replace(inventory, node=name, gpus=kept)

    def called(self, nodes: Iterable[str]) -> Iterator[str]:
        """The names of ``nodes`` and of their copies."""
        for node in nodes:
            yield from self._places.get(node, ())

    def _cut(self, gpu: Gpu) -> Gpu:
        if not self._layout or gpu.geometry is None:
            return gpu
        if gpu.geometry not in self._shapes:
            try:
                slices = place(gpu.geometry, self._layout)
            except PlacingError as error:
                raise RecordingError(f"the layout on a {gpu.product_name}: {error}") from error
            self._shapes[gpu.geometry] = gpu.geometry.only(slices)
        return replace(gpu, geometry=self._shapes[gpu.geometry])


def _read(line: NodeState) -> Inventory | None:
    try:
        return line.inventory()
    except (ValueError, KeyError, TypeError) as error:
        raise RecordingError(f"node {line.node}: {error}: use an undamaged copy") from error


def without_leaving(inventory: Inventory) -> Inventory:
    gpus = (
        replace(
            gpu,
            instances=tuple(i for i in gpu.instances if i.state is not InstanceState.RECLAIMING),
        )
        for gpu in inventory.gpus
    )
    return replace(inventory, gpus=tuple(gpus))
