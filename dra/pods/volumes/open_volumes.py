"""Volumes that no claim has yet, by the nodes that they reach.

There may be thousands on as many nodes, and a pod may have dozens of claims that look for one on
each node: what suits a claim is found once, until a volume changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from heapq import merge
from typing import Any

from dra.common.resources import at
from dra.pods.nodefit import NodeFacts
from dra.pods.nodeselector import matches_terms
from dra.pods.volumes.values import Volume

_Place = tuple[str, str]
"""A label of nodes and one of its values."""


class OpenVolumes:
    """Some volumes, looked for node by node."""

    def __init__(self, volumes: Iterable[Volume]) -> None:
        self._anywhere: list[Volume] = []
        self._in: dict[_Place, list[Volume]] = {}
        for volume in sorted(volumes, key=_order):
            places = _places(volume)
            if places is None:
                self._anywhere.append(volume)
            for place in dict.fromkeys(places or ()):
                self._in.setdefault(place, []).append(volume)
        self._keys = {key for key, _ in self._in}

    def on(self, node: NodeFacts) -> Iterator[Volume]:
        """Those that reach ``node``, by size and then by name."""
        here = ((key, node.labels.get(key)) for key in self._keys)
        found = [self._in.get((key, value), []) for key, value in here if value is not None]
        return (v for v in merge(self._anywhere, *found, key=_order) if reaches(v, node))


def reaches(volume: Volume, node: NodeFacts) -> bool:
    """True if the node affinity of a volume allows ``node``."""
    return volume.terms is None or matches_terms(volume.terms, node.labels, "")


def _order(volume: Volume) -> tuple[int, str]:
    return volume.wish.size, volume.name


def _places(volume: Volume) -> list[_Place] | None:
    """The places of one of which its nodes are; None where that is not told so simply."""
    if volume.terms is None or len(volume.terms) != 1:
        return None
    return next(map(_values, filter(_is_in, at(volume.terms[0], "matchExpressions"))), None)


def _is_in(requirement: Mapping[str, Any]) -> bool:
    return bool(requirement["operator"] == "In")


def _values(requirement: Mapping[str, Any]) -> list[_Place]:
    return [(requirement["key"], value) for value in at(requirement, "values")]
