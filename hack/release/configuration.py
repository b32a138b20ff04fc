"""Tables of the chart's admission policy on configurations, made from ``api/config.py``.

Run ``python -m hack.release.configuration`` after a change there; a test compares the file
with a fresh run. The policy (``templates/configuration.yaml``) says what a type says: kind, fields,
words, ranges. What goes beyond, such as fields that contradict each other, ``kubectl mig lint`` and
the controller tell.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

import yaml
from msgspec import inspect

from api.config import READABLE
from hack.cluster.chart import CHART

TARGET = CHART / "files/configuration.yaml"
_HEADER = "# Made by python -m hack.release.configuration of api/config.py.\n"
_MOST = 2**53
"""Whole numbers up to which JSON, as helm and many others read it, is exact."""


@dataclass
class Tables:
    """Content of the types, by the words for each type, which messages repeat.

    ``kinds``: apiVersion and kind of what is read. ``fields``: of objects, with the types that each
    may have; ``names``: the same as a text; ``required``: those that have to be there. ``words``,
    ``bounds``: what texts and numbers may be. ``lists``: type of items, at least one. ``levels``:
    numbers of the levels of objects in objects.
    """

    kinds: list[list[str]] = field(default_factory=list)
    fields: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    required: dict[str, list[str]] = field(default_factory=dict)
    words: dict[str, list[str]] = field(default_factory=dict)
    bounds: dict[str, list[int]] = field(default_factory=dict)
    lists: dict[str, str] = field(default_factory=dict)
    levels: list[int] = field(default_factory=list)

    def take(self, name: str, found: inspect.Type, level: int) -> None:
        """Take an object of this name, and what is in it."""
        if not isinstance(found, inspect.StructType):
            raise TypeError(f"{name} is no struct")
        if level not in self.levels:
            self.levels.append(level)
        fields = {f.encode_name: self._names(f.type, level) for f in found.fields}
        if self.fields.setdefault(name, fields) != fields:
            raise TypeError(f"two types are called {name!r}")
        self.names[name] = ", ".join(fields)
        if required := [f.encode_name for f in found.fields if f.required]:
            self.required[name] = required

    def _names(self, kind: inspect.Type, level: int) -> list[str]:
        kinds = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
        return [self._name(each, level) for each in kinds]

    def _name(self, kind: inspect.Type, level: int) -> str:
        match kind:
            case inspect.StructType(fields=fields):
                name = f"an object with {', '.join(f.encode_name for f in fields)}"
                self.take(name, kind, level + 1)
            case inspect.LiteralType(values=words):
                name = f"one of: {', '.join(map(str, words))}"
                self.words[name] = [*map(str, words)]
            case inspect.IntType(ge=least, le=most, gt=None, lt=None, multiple_of=None):
                said = f" of at least {least}" if most is None else f" from {least} to {most}"
                name = "a whole number" + ("" if least is most is None else said)
                self.bounds[name] = [
                    -_MOST if least is None else least,
                    _MOST if most is None else most,
                ]
            case inspect.VarTupleType(item_type=item, min_length=1, max_length=None):
                inner = self._name(item, level)
                name = f"a list, each {inner}"
                self.lists[name] = inner
            case inspect.StrType(pattern=None, min_length=None, max_length=None):
                name = "a text"
            case inspect.NoneType():
                name = "null"
            case _:
                raise TypeError(f"the policy knows no {kind}: say here and there what that is")
        return name


def text() -> str:
    """Content of the chart's file."""
    tables = Tables()
    for (version, kind), found in READABLE.items():
        tables.kinds.append([version, kind])
        tables.take(f"{kind} of {version}", inspect.type_info(found), 0)
    return _HEADER + yaml.safe_dump(asdict(tables), sort_keys=False, width=10_000)


if __name__ == "__main__":
    TARGET.write_text(text())
