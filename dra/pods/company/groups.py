"""Groups of pods that others cannot tell apart: of one namespace, with equal labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeVar

from dra.pods.labelselector import Labels
from dra.pods.pods import Pod

K = TypeVar("K")


class Alike(NamedTuple):
    """Traits of pods of a namespace that are counted together."""

    labels: frozenset[tuple[str, str]]
    bound: bool
    ending: bool


def alike(pod: Pod) -> Alike:
    """The traits of ``pod``."""
    return Alike(frozenset(pod.labels.items()), bool(pod.node), pod.deleting)


class Group(NamedTuple):
    """Pods of a namespace that are alike: how many of them are on which nodes.

    ``bound``: kube-scheduler has put them there; of others only we know where they go. ``ending``:
    they are being deleted.
    """

    namespace: str
    labels: Labels
    bound: bool
    ending: bool
    nodes: Mapping[str, int]


class Groups:
    """The pods of one namespace, those that are alike together.

    ``places`` is the number of nodes, of all groups together, on which they are.
    """

    def __init__(self) -> None:
        self.places = 0
        # The labels stand beside their set: to make them of it anew takes long where they are many.
        self._known: dict[Alike, tuple[Labels, dict[str, int]]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[tuple[Alike, Labels, Mapping[str, int]]]:
        for traits, (labels, nodes) in self._known.items():
            yield traits, labels, nodes

    def book(self, pod: Pod, node: str, change: int) -> None:
        """Count so many more pods like ``pod`` on ``node``."""
        traits = alike(pod)
        _, nodes = self._known.setdefault(traits, (pod.labels, {}))
        before = len(nodes)
        book(nodes, node, change)
        self.places += len(nodes) - before
        if not nodes:
            del self._known[traits]


def book(counts: dict[K, int], key: K, change: int) -> None:
    """Count so many more of ``key``; one of which there are none is not kept."""
    left = counts.get(key, 0) + change
    if left:
        counts[key] = left
    else:
        counts.pop(key, None)
