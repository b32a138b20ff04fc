"""Attribute values that constraints of claims compare between devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from dra.cel.offers import Offer

Vector = tuple[int, ...]
"""Number of devices of each type of want."""

Members = Mapping[int, tuple[int, ...]]
"""By constraint, the types of want that it covers."""


class ConstraintValue(NamedTuple):
    """The value that a device has for a constrained attribute.

    ``local``: only devices of one GPU could have it.
    """

    constraint: int
    value: object
    local: bool


ConstraintValues = frozenset[ConstraintValue]
NO_VALUES: ConstraintValues = frozenset()
"""No values."""


@dataclass(frozen=True, slots=True)
class ConstraintRules:
    """The constraints for one GPU, by type of want and offer.

    No two devices may have a value of ``distinct`` in common. All devices that serve the types
    ``members[c]`` must have the same value of constraint ``c`` of ``same``.
    """

    distinct: Mapping[tuple[int, Offer], ConstraintValues]
    same: Mapping[tuple[int, Offer], ConstraintValues]
    members: Members

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for GPUs of one node that are under the same rules."""
        return (tuple(self.distinct.items()), tuple(self.same.items()))


_NOTHING: Mapping[Any, Any] = MappingProxyType({})
NO_MEMBERS: Members = _NOTHING
UNCONSTRAINED = ConstraintRules(_NOTHING, _NOTHING, _NOTHING)
"""No constraints."""


def joined(bound: ConstraintValues, new: ConstraintValues) -> ConstraintValues | None:
    """Both together; None where a constraint would have two values."""
    if not bound or not new:
        return bound or new
    known = {value.constraint: value for value in bound}
    if any(known.get(value.constraint, value) != value for value in new):
        return None
    return bound | new


def is_complete(value: ConstraintValue, served: Vector, target: Vector, members: Members) -> bool:
    """True when all types of its constraint are served, so that it binds nobody any more."""
    return all(served[index] == target[index] for index in members[value.constraint])
