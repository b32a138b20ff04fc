"""Effects of changes: what they call for, collected until somebody takes them."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from operator import attrgetter

from dra.common.resources import ObjectKey
from dra.gangs.membership import GangKey


@dataclass(frozen=True, slots=True)
class TakenBack:
    """An allocation of ours that somebody else removed."""

    claim: ObjectKey
    node: str


@dataclass(slots=True)
class Effects:
    """Consequences of the changes since the last ``take``.

    ``room``: the nodes where something that did not fit may fit now, and ``room_anywhere`` where
    that may be any node. ``classes``: the generated DeviceClasses may be out of date, and
    ``labels``: those of these nodes may be. ``templates``: those of limits that are gone, or that
    no living pod names any more, ``opted_in``: namespaces that have opted in to them.
    ``reserved``: nodes whose MigNodes reserve something else than before. ``nodes`` are those that
    kube-scheduler may judge differently now, ``others`` those where another driver may offer
    something else than before, empty for any, ``failures`` those that tell anew which Prepares
    failed; what is gone is named by UID. ``bound`` are those of ``pods`` that had no node before.
    """

    pods: set[ObjectKey] = field(default_factory=set)
    claims: set[ObjectKey] = field(default_factory=set)
    bound: set[ObjectKey] = field(default_factory=set)
    nodes: set[str] = field(default_factory=set)
    others: set[str] = field(default_factory=set)
    failures: set[str] = field(default_factory=set)
    gone_pods: set[str] = field(default_factory=set)
    gone_claims: set[str] = field(default_factory=set)
    gone_gangs: set[GangKey] = field(default_factory=set)
    taken_back: list[TakenBack] = field(default_factory=list)
    room: set[str] = field(default_factory=set)
    room_anywhere: bool = False
    classes: bool = False
    templates: set[ObjectKey] = field(default_factory=set)
    opted_in: set[str] = field(default_factory=set)
    labels: set[str] = field(default_factory=set)
    reserved: set[str] = field(default_factory=set)

    def take(self) -> Effects:
        """All that was collected since the last call."""
        taken = Effects(*_ALL(self))
        Effects.__init__(self)
        return taken

    def __bool__(self) -> bool:
        """True if anything was collected."""
        return any(_ALL(self))


_ALL = attrgetter(*(each.name for each in fields(Effects)))
