"""Gangs of the mirrored cluster: their pods, and the objects that say how many they need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from controller import times
from controller.cluster.records import Effects, GangRefusal
from dra.common.resources import Obj, ObjectKey, Resource
from dra.gangs.membership import (
    GangKey,
    GroupKind,
    Membership,
    PodGroups,
    Unclear,
    find_minimum,
    kind_of,
    read_membership,
    read_pod_group,
)
from dra.kube.timing import Backoff
from dra.pods.pods import Pod

_Place = tuple[GroupKind, str, str]
"""An object that says how large gangs are: its kind, namespace and name."""


@dataclass(slots=True)
class Gang:
    """Pods that belong together, without those that failed or are being deleted.

    ``gated``: those of ``members`` that have another scheduling gate than ours.
    ``waiting``: those with claims that are pending and not bound.
    ``stated``: the minimums that its pods state (None: it states none), and how many pods do.
    ``version``: grows with each change of the gang.
    ``served``: the pods that the last count found to have their slices.
    ``half_since``: monotonic time from which only some of its pods have slices.
    ``gives_back``: it is giving those slices back.
    ``rest``: the pause before it is tried again.
    ``writes``: how many writes of its allocations are under way.
    ``write_pause``: the pause after a failed write.
    ``refusal``: the reason why it was refused last, while that stands.
    """

    membership: Membership
    members: dict[ObjectKey, None] = field(default_factory=dict)
    gated: set[ObjectKey] = field(default_factory=set)
    waiting: dict[ObjectKey, None] = field(default_factory=dict)
    stated: Counter[str | None] = field(default_factory=Counter)
    version: int = 0
    minimum: tuple[int, int | Unclear] | None = None
    """The ``version`` for which the number of needed pods was found, and that number."""
    served: list[ObjectKey] = field(default_factory=list)
    half_since: float | None = None
    gives_back: bool = False
    rest: Backoff = field(default_factory=lambda: times.growing(times.GANG_HALF_AGAIN))
    writes: int = 0
    write_pause: Backoff = field(default_factory=lambda: times.growing(times.FAILED_WORK))
    refusal: GangRefusal | None = None

    @property
    def key(self) -> GangKey:
        return self.membership.gang

    @property
    def present(self) -> int:
        """Number of members that no other scheduling gate holds back."""
        return len(self.members) - len(self.gated)


@dataclass(frozen=True, slots=True)
class _Part:
    """A pod's part in a gang; ``gated`` and ``waits`` as of ``Gang``."""

    membership: Membership
    gated: bool
    waits: bool


class KnownGangs:
    """The gangs, found by their pods. ``gate``: our scheduling gate. Not thread-safe."""

    def __init__(self, gate: str, effects: Effects) -> None:
        self._gate = gate
        self._effects = effects
        self._groups = PodGroups()
        self._gangs: dict[GangKey, Gang] = {}
        self._parts: dict[ObjectKey, _Part] = {}
        self._of_group: dict[_Place, set[GangKey]] = {}

    def find(self, pod: ObjectKey) -> Gang | None:
        """The gang of a pod; None for a pod without a gang."""
        part = self._parts.get(pod)
        return self._gangs[part.membership.gang] if part is not None else None

    def minimum(self, gang: Gang) -> int | Unclear:
        """The least number of pods of ``gang`` that are allocated together."""
        if gang.minimum is None or gang.minimum[0] != gang.version:
            found = find_minimum(gang.membership, gang.stated.keys(), self._groups)
            gang.minimum = gang.version, found
        return gang.minimum[1]

    def change(self, key: ObjectKey, pod: Pod | None) -> None:
        before, after = self._parts.get(key), _part_of(pod, self._gate)
        if before == after:
            return
        if before is not None and after is not None and _same_part(before, after):
            self._parts[key] = after
            self._note_waiting(key, after)
            return
        if before is not None:
            self._leave(key, before)
        if after is not None:
            self._join(key, after)

    def note_listed(self, resource: Resource) -> None:
        kind = kind_of(resource)
        if kind is not None and kind not in self._groups.kinds:
            self._groups.kinds.add(kind)
            for place, gangs in self._of_group.items():
                if place[0] == kind:
                    self._wake(gangs)

    def change_group(self, resource: Resource, key: ObjectKey, obj: Obj | None) -> None:
        """Take an object that says how large gangs are; ``obj`` is None if it is gone."""
        kind = kind_of(resource)
        if kind is None:
            return
        gangs = self._of_group.get((kind, *key), ())
        if obj is None:
            self._groups.remove(kind, *key)
            for gang in gangs:
                self._gangs[gang].version += 1
        elif self._groups.set(read_pod_group(kind, obj)):
            self._wake(gangs)

    def _join(self, key: ObjectKey, part: _Part) -> None:
        membership = part.membership
        gang = self._gangs.setdefault(membership.gang, Gang(membership))
        self._parts[key] = part
        self._note_waiting(key, part)
        gang.members[key] = None
        gang.stated[membership.stated] += 1
        if part.gated:
            gang.gated.add(key)
        if membership.group is not None:
            self._of_group.setdefault(membership.group[:3], set()).add(gang.key)
        self._changed(gang)

    def _leave(self, key: ObjectKey, part: _Part) -> None:
        gang = self._gangs[part.membership.gang]
        del self._parts[key], gang.members[key]
        gang.gated.discard(key)
        gang.waiting.pop(key, None)
        stated = part.membership.stated
        gang.stated[stated] -= 1
        if not gang.stated[stated]:
            del gang.stated[stated]
        self._changed(gang)
        if gang.members:
            return
        del self._gangs[gang.key]
        self._effects.gone_gangs.add(gang.key)
        if (group := gang.membership.group) is not None:
            self._of_group[group[:3]].discard(gang.key)
            if not self._of_group[group[:3]]:
                del self._of_group[group[:3]]

    def _changed(self, gang: Gang) -> None:
        """Have one waiting pod looked at: that look is about the whole gang."""
        gang.version += 1
        self._effects.pods.update(islice(gang.waiting, 1))

    def _wake(self, keys: Iterable[GangKey]) -> None:
        for gang in map(self._gangs.__getitem__, keys):
            gang.version += 1
            self._effects.pods.update(gang.waiting)

    def _note_waiting(self, key: ObjectKey, part: _Part) -> None:
        waiting = self._gangs[part.membership.gang].waiting
        if part.waits:
            waiting[key] = None
        else:
            waiting.pop(key, None)


def _same_part(before: _Part, after: _Part) -> bool:
    """True if nothing else than ``waits`` differs."""
    return (before.membership, before.gated) == (after.membership, after.gated)


def _part_of(pod: Pod | None, gate: str) -> _Part | None:
    if pod is None or pod.deleting or pod.phase == "Failed":
        return None
    membership = read_membership(pod.obj)
    if membership is None:
        return None
    return _Part(
        membership,
        gated=any(other != gate for other in pod.gates),
        waits=pod.pending and not pod.node and bool(pod.claims),
    )
