"""What the constraints of claims leave of the GPUs of one node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, product
from typing import NamedTuple

from controller.gpustate import GpuState
from controller.joint import Mark, Marks
from dra.devices import gpu_attributes, slice_attributes
from dra.selectors.kinds import Offer
from dra.wants import Constraint

_MAX_SETTINGS = 4096

Allowed = Sequence[tuple[Offer, ...]]
"""Per type of want, the offers of one GPU that would do."""

Setting = Mapping[Constraint, object]
"""A value for each attribute that devices are to have in common."""


class WantType(NamedTuple):
    """Wants that the same devices would serve alike: same constraints, same policy."""

    expressions: tuple[str, ...]
    constraints: tuple[Constraint, ...]
    policy: str
    everything: bool = False


class Constrained:
    """The GPUs ``states`` of a node under constraints; ``allowed`` is per GPU."""

    def __init__(
        self,
        types: Sequence[WantType],
        states: Sequence[GpuState],
        allowed: Sequence[Allowed],
        *,
        driver: str,
    ) -> None:
        self._types = types
        self._states = states
        self._driver = driver
        found = dict.fromkeys(c for kind in types for c in kind.constraints)
        self._same = [c for c in found if not c.distinct]
        self._distinct = [c for c in found if c.distinct]
        self._allowed = [
            [
                tuple(o for o in group if self._has_all(state, o, kind.constraints))
                for kind, group in zip(types, offers, strict=True)
            ]
            for state, offers in zip(states, allowed, strict=True)
        ]
        self._spread = [self._homes(c) for c in self._distinct]

    def settings(self) -> Iterable[Setting]:
        """Every choice of one value for each attribute that is to be the same."""
        if not self._same:
            return [{}]
        values = [list(dict.fromkeys(v for _, v in self._values(c))) for c in self._same]
        choices = (dict(zip(self._same, choice, strict=True)) for choice in product(*values))
        return islice(choices, _MAX_SETTINGS)

    def allowed(self, gpu: int, setting: Setting) -> list[tuple[Offer, ...]]:
        """The offers of the GPU with index ``gpu`` that agree with ``setting``."""
        state = self._states[gpu]
        return [
            tuple(
                o
                for o in group
                if all(
                    self._value(state, o, c) == setting[c] for c in kind.constraints if c in setting
                )
            )
            for kind, group in zip(self._types, self._allowed[gpu], strict=True)
        ]

    def marks(self, gpu: int) -> dict[tuple[int, Offer], Marks]:
        """What of that GPU may be given out only once, by type and offer."""
        if not self._distinct:
            return {}
        state = self._states[gpu]
        marks: dict[tuple[int, Offer], Marks] = {}
        for index, (kind, group) in enumerate(zip(self._types, self._allowed[gpu], strict=True)):
            for offer in group:
                marks[index, offer] = frozenset(self._marks(state, offer, kind))
        return marks

    def _marks(self, state: GpuState, offer: Offer, kind: WantType) -> Iterator[Mark]:
        for number, constraint in enumerate(self._distinct):
            if constraint in kind.constraints:
                value = self._value(state, offer, constraint)
                local = len(self._spread[number][value]) == 1
                # What only this GPU has is numbered, so that equal GPUs have equal marks.
                shown = self._rank(state, number, value) if local else value
                yield Mark(number, shown, local)

    def _rank(self, state: GpuState, number: int, value: object) -> int:
        here = [v for v, homes in self._spread[number].items() if homes == {state.id}]
        return here.index(value)

    def _homes(self, constraint: Constraint) -> dict[object, set[object]]:
        """By value of an attribute, the GPUs whose devices have it."""
        homes: dict[object, set[object]] = {}
        for state, value in self._values(constraint):
            homes.setdefault(value, set()).add(state.id)
        return homes

    def _values(self, constraint: Constraint) -> Iterator[tuple[GpuState, object]]:
        for state, offers in zip(self._states, self._allowed, strict=True):
            for kind, group in zip(self._types, offers, strict=True):
                if constraint in kind.constraints:
                    yield from ((state, self._value(state, o, constraint)) for o in group)

    def _has_all(self, state: GpuState, offer: Offer, constraints: Iterable[Constraint]) -> bool:
        return all(self._value(state, offer, c) is not None for c in constraints)

    def _value(self, state: GpuState, offer: Offer, constraint: Constraint) -> object:
        """The value of a constrained attribute, None where the device has none."""
        if offer.profile is None:
            attributes = gpu_attributes(state.gpu, state.inventory)
        else:
            attributes = slice_attributes(state.gpu, offer.profile, state.inventory)
        field = attributes.get(constraint.attribute.removeprefix(f"{self._driver}/"))
        return None if field is None else next(iter(field.items()))
