"""YAML files as objects that know their lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import yaml

from dra.common.resources import at

Path = tuple[str | int, ...]
"""The way to a field: keys and indexes."""


class Level(StrEnum):
    """An error does not work; a warning works otherwise than it seems; a hint could be better."""

    ERROR = "error"
    WARNING = "warning"
    HINT = "hint"


@dataclass(frozen=True, slots=True)
class Remark:
    """Something about a field of an object; ``line`` counts from 1."""

    level: Level
    file: str
    line: int
    subject: str
    field: str
    message: str

    @property
    def as_json(self) -> dict[str, Any]:
        """The remark as ``-o json`` prints it."""
        return {
            "level": self.level.value,
            "file": self.file,
            "line": self.line,
            "object": self.subject,
            "field": self.field,
            "message": self.message,
        }

    @property
    def shown(self) -> str:
        """File, line, level, object, field and message, in one line."""
        about = "".join(f"{part}: " for part in (self.subject, self.field) if part)
        return f"{self.file}:{self.line}: {self.level.value}: {about}{self.message}"


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """One object of a file. Of a List every item is one."""

    file: str
    obj: dict[str, Any]
    node: yaml.Node

    @property
    def kind(self) -> str:
        """Its kind; empty if it has none."""
        return str(self.obj.get("kind") or "")

    @property
    def name(self) -> str:
        """Its name; empty if it has none."""
        return str(_dict(self.obj.get("metadata")).get("name") or "")

    @property
    def key(self) -> tuple[str, str]:
        """Namespace ("" where none is written) and name."""
        return str(_dict(self.obj.get("metadata")).get("namespace") or ""), self.name

    def line(self, path: Path) -> int:
        """The line of a field, or of the nearest thing around it that is there."""
        node = self.node
        line = node.start_mark.line
        for step in path:
            found = _child(node, step)
            if found is None:
                break
            line, node = found
        return line + 1

    def remark(self, level: Level, path: Path, message: str) -> Remark:
        """A remark about one of its fields."""
        return Remark(
            level,
            self.file,
            self.line(path),
            f"{self.kind} {self.name}".strip(),
            dotted(path),
            message,
        )


def read_documents(file: str, text: str) -> Iterator[Document | Remark]:
    """The objects in ``text``, or a remark about what is no YAML."""
    try:
        for node in list(yaml.compose_all(text, Loader=yaml.SafeLoader)):
            constructor = yaml.SafeLoader("")
            obj = constructor.construct_document(node)
            if obj is None:
                continue  # what templates leave behind between two separators
            if not isinstance(obj, dict):
                line = node.start_mark.line + 1
                yield Remark(Level.ERROR, file, line, "", "", "it is no Kubernetes object")
            elif obj.get("kind") == "List":
                yield from _items(file, obj, node)
            else:
                yield Document(file, obj, node)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error)
        yield Remark(Level.ERROR, file, mark.line + 1 if mark else 1, "", "", f"no YAML: {problem}")


def dotted(path: Path) -> str:
    """``spec.devices.requests[0].exactly``."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text.removeprefix(".")


def _items(file: str, obj: dict[str, Any], node: yaml.Node) -> Iterator[Document]:
    found = _child(node, "items")
    children = found[1].value if found and isinstance(found[1], yaml.SequenceNode) else []
    for item, child in zip(at(obj, "items"), children, strict=False):
        if isinstance(item, dict):
            yield Document(file, item, child)


def _child(node: yaml.Node, step: str | int) -> tuple[int, yaml.Node] | None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == step:
                return key.start_mark.line, value
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        child = node.value[step]
        return child.start_mark.line, child
    return None


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
