"""Objects of manifests with their lines, and access to fields whatever these hold."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path as FilePath
from typing import Any

import yaml

from cli.output import CliError, Exit
from dra.common.resources import Resource

_SUFFIXES = (".yaml", ".yml", ".json")
_MOST_VALUES, _DEEPEST = 500_000, 60
"""Bounds on a document once its aliases are written out: more than any object in a cluster has."""

Path = tuple[str | int, ...]
"""The way to a field: keys and indexes."""


class Level(StrEnum):
    """Level of a remark.

    ``ERROR``: it does not work. ``WARNING``: it works otherwise than it seems.
    """

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Remark:
    """Something about a field of an object.

    ``line``: counts from 1. ``object``: kind and name. ``field``: path of the field.
    """

    level: Level
    file: str
    line: int
    object: str
    field: str
    message: str

    def shown(self, level: str = "") -> str:
        """File, line, ``level`` (or the remark's own), object, field and message, in one line."""
        about = "".join(f"{part}: " for part in (self.object, self.field) if part)
        return f"{self.file}:{self.line}: {level or self.level.value}: {about}{self.message}"


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """One object of a file; each item of a List is one."""

    file: str
    obj: dict[str, Any]
    node: yaml.Node

    @property
    def kind(self) -> str:
        """Its kind; empty if it has none."""
        return str(self.obj.get("kind") or "")

    def is_a(self, resource: Resource) -> bool:
        """True for an object of the resource's kind and group, in any version of it."""
        group, separator, _ = text(self.obj, "apiVersion").partition("/")
        return (self.kind, group if separator else "") == (resource.kind, resource.group)

    @property
    def mappings(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Every mapping in it with its path, outer ones first."""
        waiting: list[tuple[Path, Any]] = [((), self.obj)]
        while waiting:
            path, value = waiting.pop()
            if isinstance(value, dict):
                yield path, value
                waiting += [((*path, key), value[key]) for key in reversed(value)]
            elif isinstance(value, list):
                waiting += [((*path, n), value[n]) for n in reversed(range(len(value)))]

    @property
    def name(self) -> str:
        """Its name; empty if it has none."""
        return str(mapping(self.obj, "metadata").get("name") or "")

    @property
    def key(self) -> tuple[str, str]:
        """Namespace ("" where none is written) and name."""
        return str(mapping(self.obj, "metadata").get("namespace") or ""), self.name

    def remark(self, level: Level, path: Path, message: str) -> Remark:
        """A remark about one of its fields."""
        subject = f"{self.kind} {self.name}".strip()
        line, _ = _nearest(self.node, path)
        return Remark(level, self.file, line, subject, dotted(path), message)


def read_files(names: Sequence[str]) -> Iterator[Document | Remark]:
    """The objects in files, and remarks about texts that are no YAML.

    A directory stands for the manifests below it, ``-`` for standard input. Raises CliError for a
    file that cannot be read.
    """
    for name in names:
        try:
            if name == "-":
                yield from read_text("-", sys.stdin.read())
                continue
            path = FilePath(name)
            below = sorted(p for p in path.rglob("*") if p.suffix in _SUFFIXES)
            for file in below if path.is_dir() else [path]:
                yield from read_text(str(file), file.read_text())
        except (OSError, UnicodeDecodeError) as error:
            raise CliError(Exit.NOT_FOUND, f"{name} cannot be read: {error}") from error


def read_text(file: str, content: str) -> Iterator[Document | Remark]:
    """The objects in a text, and remarks about what is none."""

    def wrong(mark: yaml.Mark | None, message: str) -> Remark:
        return Remark(Level.ERROR, file, mark.line + 1 if mark else 1, "", "", message)

    try:
        for node in list(yaml.compose_all(content, Loader=yaml.SafeLoader)):
            constructor = yaml.SafeLoader("")
            try:
                obj = _plain(constructor.construct_document(node), [_MOST_VALUES], depth=0)
            except ValueError as error:  # of a date that is none, too
                yield wrong(node.start_mark, str(error))
                continue
            if text(obj, "kind").endswith("List") and isinstance(obj.get("items"), list):
                for number, item in entries(obj, "items"):
                    yield Document(file, item, _nearest(node, ("items", number))[1])
            elif isinstance(obj, dict):
                yield Document(file, obj, node)
            elif obj is not None:  # what templates leave behind between two separators
                yield wrong(node.start_mark, "it is no Kubernetes object")
    except RecursionError:
        yield wrong(None, "it is nested too deeply to be read")
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or str(error)
        template = "; render a template first (helm template)" if "{{" in content else ""
        yield wrong(getattr(error, "problem_mark", None), f"no YAML: {problem}{template}")


def _plain(value: Any, left: list[int], *, depth: int) -> Any:
    """``value`` as JSON has it: aliases written out, keys as texts; ``left`` counts values down.

    Raises:
        ValueError: it refers to itself, or is too large or too deep.
    """
    left[0] -= 1
    if left[0] < 0 or depth > _DEEPEST:
        raise ValueError("it refers to itself, or is larger or deeper than any Kubernetes object")
    if isinstance(value, dict):
        return {str(key): _plain(value[key], left, depth=depth + 1) for key in value}
    if isinstance(value, list | tuple | set):
        return [_plain(each, left, depth=depth + 1) for each in value]
    known = value is None or isinstance(value, str | int | float)
    return value if known else str(value)


def dotted(path: Path) -> str:
    """``spec.devices.requests[0].exactly``."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text.removeprefix(".")


def steps(obj: Any, path: str) -> Path:
    """Keys and indexes of a dotted path into ``obj``, whose keys may have dots themselves."""
    found: list[str | int] = []
    while path := path.removeprefix("."):
        if path.startswith("["):
            number, _, path = path[1:].partition("]")
            if not number.isdigit():
                continue  # of any key, to msgspec
            step: str | int = int(number)
        else:
            known = obj if isinstance(obj, dict) else {}
            keys = [k for k in known if path == k or path.startswith((f"{k}.", f"{k}["))]
            step = max(keys, key=len, default=path)
            path = path[len(step) :]
        found.append(step)
        try:
            obj = obj[step]
        except (KeyError, IndexError, TypeError):
            obj = None
    return tuple(found)


def _nearest(node: yaml.Node, path: Path) -> tuple[int, yaml.Node]:
    """Line and value of the field at ``path``; if it is missing, of the nearest one around it."""
    line = node.start_mark.line
    for step in path:
        pairs = node.value if isinstance(node, yaml.MappingNode) else ()
        found = next((pair for pair in pairs if pair[0].value == step), None)
        if isinstance(node, yaml.SequenceNode) and isinstance(step, int):
            found = (*node.value[step : step + 1] * 2,)
        if not found:
            break
        line, node = found[0].start_mark.line, found[1]
    return line + 1, node


def mapping(value: Any, *keys: str) -> dict[str, Any]:
    """The mapping at ``keys`` below ``value``; empty where there is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def entries(value: Any, *keys: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Index and content of the mappings in the list at ``keys`` below ``value``."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    for index, item in enumerate(value if isinstance(value, list) else ()):
        if isinstance(item, dict):
            yield index, item


def text(value: Any, key: str) -> str:
    """The text at ``key``; empty where there is none."""
    found = value.get(key) if isinstance(value, dict) else None
    return str(found) if found is not None else ""
