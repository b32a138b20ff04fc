"""Records under one global version counter, with a bounded history per resource.

A record is immutable: it holds the object and its encoded JSON, so that a read, a list or fifty
watches cost no encoding. The store knows no rule of the API; it orders writes and tells them on.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Literal

import msgspec

from dra.common.resources import Obj
from sim.apiserver import errors

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from sim.apiserver.resources import Family


Key = tuple[str, str]
"""(namespace or "", name)."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


@dataclass(frozen=True, slots=True)
class Record:
    """One version of one object; `obj` is shared and never mutated."""

    obj: Obj
    version: int
    raw: bytes

    def copy(self) -> Obj:
        """A private deep copy of the object."""
        copied: Obj = _decode(self.raw)
        return copied


@dataclass(frozen=True, slots=True)
class Change:
    """One write. A deletion's `new` is the last state under the version of the deletion."""

    type: Literal["ADDED", "MODIFIED", "DELETED"]
    family: Family
    old: Record | None
    new: Record


class CompactedError(Exception):
    """The history no longer reaches back to the asked-for version."""


class Store:
    """All objects, sorted by key on listing; single-threaded by design (one event loop)."""

    def __init__(self, *, history: int) -> None:
        self.version = 1
        self._history = history
        self._objects: defaultdict[Family, dict[Key, Record]] = defaultdict(dict)
        self._changes: defaultdict[Family, deque[Change]] = defaultdict(deque)
        self._compacted: defaultdict[Family, int] = defaultdict(int)
        self._listeners: list[Callable[[Change], None]] = []

    def get(self, family: Family, key: Key) -> Record | None:
        """The current record, if there is one."""
        return self._objects[family].get(key)

    def records(
        self, family: Family, namespace: str = "", *, names: frozenset[str] = frozenset()
    ) -> list[Record]:
        """The records of a resource in key order; an empty namespace, or no names, means all."""
        objects = self._objects[family]
        keys = (k for k in objects if not namespace or k[0] == namespace)
        return [objects[k] for k in sorted(k for k in keys if not names or k[1] in names)]

    def families(self) -> Iterator[Family]:
        """Every resource that holds an object."""
        return (family for family, objects in list(self._objects.items()) if objects)

    def put(self, family: Family, obj: Obj) -> Record:
        """Creates or replaces under the next version, which is written into the object."""
        key = key_of(obj)
        old = self._objects[family].get(key)
        record = self._stamp(obj)
        self._objects[family][key] = record
        self._tell(Change("MODIFIED" if old else "ADDED", family, old, record))
        return record

    def remove(self, family: Family, obj: Obj) -> Record:
        """Deletes; `obj` is the state that watchers see, under the version of the deletion."""
        old = self._objects[family].pop(key_of(obj))
        record = self._stamp(obj)
        self._tell(Change("DELETED", family, old, record))
        return record

    def since(self, family: Family, version: int) -> list[Change]:
        """The changes after `version`.

        Raises:
            CompactedError: some of them are forgotten.
        """
        if version < self._compacted[family]:
            raise CompactedError
        return [change for change in self._changes[family] if change.new.version > version]

    def compacted(self, family: Family) -> int:
        """The version up to which the history of a resource is forgotten."""
        return self._compacted[family]

    def listen(self, listener: Callable[[Change], None]) -> Callable[[], None]:
        """Has every later change told; the returned call ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _stamp(self, obj: Obj) -> Record:
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        raw = _encode(obj)
        return Record(_decode(raw), self.version, raw)

    def _tell(self, change: Change) -> None:
        changes = self._changes[change.family]
        changes.append(change)
        while len(changes) > self._history:
            self._compacted[change.family] = changes.popleft().new.version
        for listener in list(self._listeners):
            listener(change)


def key_of(obj: Obj) -> Key:
    """The key under which an object is stored."""
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


_SPLIT = re.compile(r",(?![^(]*\))")
_SET = re.compile(r"(\S+)\s+(in|notin)\s*\(([^)]*)\)")
_COMPARE = re.compile(r"([^\s=!<>]+)\s*(==|!=|=)\s*([^\s=!<>]*)")
_EXISTS = re.compile(r"(!?)\s*([^\s=!<>()]+)")


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition: the key, the operator, and the values it speaks of."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def holds(self, labels: Obj) -> bool:
        """True if a set of labels or fields satisfies this condition."""
        value = labels.get(self.key)
        return {
            "exists": value is not None,
            "missing": value is None,
            "in": value in self.values,
            "notin": value not in self.values,
        }[self.operator]


@dataclass(frozen=True, slots=True)
class Selection:
    """Selection of objects by a list or watch; an empty selection takes all."""

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """The only names that an object may have; empty if it may have others."""
        named = (f for f in self.fields if (f.key, f.operator) == ("metadata.name", "in"))
        return next((f.values for f in named), frozenset())

    def takes(self, obj: Obj, fields_of: Callable[[Obj], Obj]) -> bool:
        """True if an object is selected; `fields_of` gives its selectable fields."""
        labels = obj["metadata"].get("labels", {})
        if not all(requirement.holds(labels) for requirement in self.labels):
            return False
        return not self.fields or all(map(Requirement.holds, self.fields, repeat(fields_of(obj))))


def parse_selection(labels: str, fields: str, supported: Collection[str]) -> Selection:
    """Parses selectors such as `a=b,c!=d,e in (f,g),!h` and `metadata.name=a`.

    Raises:
        ApiError: 400, one cannot be parsed, or names a field that this resource does not select by.
    """
    by_field = tuple(map(_parse, filter(str.strip, fields.split(","))))
    for requirement in by_field:
        if requirement.key not in supported:
            raise errors.bad_request(f"field label not supported: {requirement.key}")
    return Selection(tuple(map(_parse, filter(str.strip, _SPLIT.split(labels)))), by_field)


def _parse(part: str) -> Requirement:
    part = part.strip()
    if match := _SET.fullmatch(part):
        values = frozenset(value.strip() for value in match[3].split(","))
        return Requirement(match[1], match[2], values)
    if match := _COMPARE.fullmatch(part):
        operator = "notin" if match[2] == "!=" else "in"
        return Requirement(match[1], operator, frozenset([match[3]]))
    if match := _EXISTS.fullmatch(part):
        return Requirement(match[2], "missing" if match[1] else "exists")
    raise errors.bad_request(f"unable to parse requirement: found '{part}'")
