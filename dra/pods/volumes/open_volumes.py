"""Volumes that no claim has yet, by the nodes that they reach.

There may be thousands on as many nodes, and a pod may have dozens of claims that look for one on
each node: what suits a claim is found once, until a volume changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge

from dra.pods.nodefit import NodeFacts
from dra.pods.nodeselector import matches_terms
from dra.pods.volumes.values import Place, Volume


class OpenVolumes:
    """Some volumes, looked for node by node."""

    def __init__(self, volumes: Iterable[Volume]) -> None:
        self._anywhere: list[Volume] = []
        self._in: dict[Place, list[Volume]] = {}
        for volume in sorted(volumes, key=_order):
            if volume.places is None:
                self._anywhere.append(volume)
            for place in volume.places or ():
                self._in.setdefault(place, []).append(volume)
        self._keys = {key for key, _ in self._in}

    def on(self, node: NodeFacts) -> Iterator[Volume]:
        """Those that reach ``node``, by size and then by name."""
        if not self._anywhere and not self._keys:
            return iter(())
        here = ((key, node.labels.get(key)) for key in self._keys)
        found = [self._in.get((key, value), []) for key, value in here if value is not None]
        return (v for v in merge(self._anywhere, *found, key=_order) if reaches(v, node))


def reaches(volume: Volume, node: NodeFacts) -> bool:
    """True if the node affinity of a volume allows ``node``."""
    return volume.terms is None or matches_terms(volume.terms, node.labels, "")


def _order(volume: Volume) -> tuple[int, str]:
    return volume.wish.size, volume.name
