"""Label and field selectors, parsed once into a predicate."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dra.common.resources import Obj
from sim.apiserver.refusals import errors, names

if TYPE_CHECKING:
    from collections.abc import Callable

_SPLIT = re.compile(r",(?![^(]*\))")
_SET = re.compile(r"^\s*(\S+)\s+(in|notin)\s*\(([^)]*)\)\s*$")
_COMPARE = re.compile(r"^\s*([^\s=!<>]+)\s*(==|!=|=)\s*([^\s=!<>]*)\s*$")
_EXISTS = re.compile(r"^\s*(!?)\s*([^\s=!<>()]+)\s*$")


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition: the key, the operator, and the values it speaks of."""

    key: str
    operator: str
    values: frozenset[str]

    def holds(self, labels: Obj) -> bool:
        """True if a set of labels or fields satisfies this condition."""
        present = self.key in labels
        if self.operator == "exists":
            return present
        if self.operator == "missing":
            return not present
        if self.operator == "in":
            return present and labels[self.key] in self.values
        return not present or labels[self.key] not in self.values


@dataclass(frozen=True, slots=True)
class Selection:
    """Selection of objects by a list or watch; an empty selection takes all."""

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()

    def takes(self, obj: Obj, fields_of: Callable[[Obj], Obj]) -> bool:
        """True if an object is selected; `fields_of` gives its selectable fields."""
        labels = obj["metadata"].get("labels", {})
        if not all(requirement.holds(labels) for requirement in self.labels):
            return False
        if not self.fields:
            return True
        fields = fields_of(obj)
        return all(requirement.holds(fields) for requirement in self.fields)


def parse_labels(text: str) -> tuple[Requirement, ...]:
    """Parses a label selector such as `a=b,c!=d,e in (f,g),!h`.

    Raises:
        ApiError: 400, it cannot be parsed.
    """
    return tuple(_parse_label(part) for part in _SPLIT.split(text) if part.strip())


def _parse_label(part: str) -> Requirement:
    if match := _SET.match(part):
        values = frozenset(value.strip() for value in match[3].split(","))
        requirement = Requirement(match[1], match[2], values)
    elif match := _COMPARE.match(part):
        operator = "notin" if match[2] == "!=" else "in"
        requirement = Requirement(match[1], operator, frozenset([match[3]]))
    elif match := _EXISTS.match(part):
        operator = "missing" if match[1] else "exists"
        requirement = Requirement(match[2], operator, frozenset())
    else:
        raise errors.bad_request(f"unable to parse requirement: found '{part}'")
    complaint = names.qualified_name(requirement.key)
    if complaint:
        raise errors.bad_request(f"unable to parse requirement: <nil>: {complaint}")
    return requirement


def parse_fields(text: str, supported: frozenset[str]) -> tuple[Requirement, ...]:
    """Parses a field selector such as `metadata.name=a,spec.nodeName!=b`.

    Raises:
        ApiError: 400, it cannot be parsed or names a field that this resource does not select by.
    """
    requirements = []
    for part in text.split(","):
        if not part.strip():
            continue
        match = re.match(r"^\s*([^=!]+?)\s*(==|!=|=)\s*(.*?)\s*$", part)
        if match is None:
            raise errors.bad_request(
                f"invalid field selector: unable to parse field selector: '{text}'"
            )
        if match[1] not in supported:
            raise errors.bad_request(f"field label not supported: {match[1]}")
        operator = "notin" if match[2] == "!=" else "in"
        requirements.append(Requirement(match[1], operator, frozenset([match[3]])))
    return tuple(requirements)
