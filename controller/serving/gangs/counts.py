"""Counts of a gang's pods: those that have their slices, and those that can be given some."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice

from controller.cluster.cluster import Cluster
from controller.cluster.known_gangs import Gang
from controller.queue.overtaking.line import urgency
from dra.allocator.problem import Problem, examine
from dra.claims.reader import Reader
from dra.claims.reasons import Obstacle
from dra.common.resources import ObjectKey
from dra.gangs.decision import Count
from dra.gangs.membership import MOST_PODS, GangKey, Unclear
from dra.pods.pods import Pod

_MOST_EXAMINED = 1000
"""Upper bound on the pods of a gang that are examined: that takes a tenth of a second."""


@dataclass(frozen=True, slots=True)
class Lacking:
    """Pods of a gang that lack slices: the problems of those that can be served, and the others.

    ``others`` have the obstacle to each, None where something is not created yet.
    """

    problems: tuple[Problem, ...]
    others: dict[ObjectKey, Obstacle | None]


class GangCounts:
    """Counts what the cluster shows now. What is being written counts as had."""

    def __init__(self, cluster: Cluster, reader: Reader) -> None:
        self._cluster = cluster
        self._reader = reader
        self._served: dict[GangKey, list[ObjectKey]] = {}

    def count(self, gang: Gang, minimum: int, *, written: bool = False) -> Count:
        """The pods of ``gang``; no more than ``minimum`` are counted as served.

        ``written``: those that have theirs for certain.
        """
        found: list[ObjectKey] = []
        # Those of the last time first: thousands may lack something, each of which asks.
        known = [key for key in self._served.get(gang.key, ()) if key in gang.members]
        tried = frozenset(known)
        for key in chain(known, (key for key in gang.members if key not in tried)):
            if not self.lacks(self._cluster.pods[key], written=written):
                found.append(key)
                if len(found) >= minimum:
                    break
        if not written:
            self._served[gang.key] = found
        return Count(minimum, gang.present, len(found))

    def forget(self, key: GangKey) -> None:
        """The gang is gone."""
        self._served.pop(key, None)

    def is_half(self, gang: Gang) -> bool:
        """True if fewer pods of ``gang`` than it needs have their slices for certain.

        Not where it is unclear how many it needs: that may have been clear before.
        """
        minimum = self._cluster.gangs.minimum(gang)
        if isinstance(minimum, Unclear) or minimum <= 1:
            return False
        return self.count(gang, minimum, written=True).need > 0

    def lacks(self, pod: Pod, *, written: bool = False) -> bool:
        """True if a claim of ``pod`` is still to be allocated by us; not of one that has ended."""
        if not pod.live:
            return False
        if None in pod.claims.values():
            return True
        for key in pod.claim_keys:
            known = self._cluster.claims.get(key)
            if known is None:
                return True
            claim = known.claim
            had = claim.allocation is not None
            had = had or (not written and self._cluster.fleet.counts(claim.ref.uid))
            if not had and self._reader.concerns(claim):
                return True
        return False

    def lacking(self, gang: Gang) -> Lacking:
        """The pods that lack something, the most urgent first."""
        problems: list[Problem] = []
        others: dict[ObjectKey, Obstacle | None] = {}
        lacking = sorted(filter(self.lacks, self._pods(gang)), key=urgency)
        free = (pod for pod in lacking if pod.pending and pod.key not in gang.gated)
        for pod in islice(free, _MOST_EXAMINED):
            examined = examine(pod, self._cluster, self._reader)
            if not isinstance(examined.found, Problem):
                others[pod.key] = examined.hindrance
            else:
                problems.append(examined.found)
            if len(problems) == MOST_PODS:
                break
        return Lacking(tuple(problems), others)

    def _pods(self, gang: Gang) -> Iterator[Pod]:
        for key in gang.members:
            yield self._cluster.pods[key]
