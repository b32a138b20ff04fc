"""Remarks on classes of nodes and on files of mig-parted's, alone or in a ConfigMap."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from api.errors import InvalidObjectError
from api.nodeclass import KIND, Layout, decode_layouts, decode_node_class, is_layouts
from cli.linting.documents import Document, Level, Path, Remark
from cli.linting.fields import mapping


def check_layouts(document: Document) -> Iterator[Remark]:
    """Findings about a document, if it is one of these."""
    if is_layouts(document.obj) or document.kind == KIND:
        try:
            layouts = _decode(document.obj)
        except InvalidObjectError as error:
            path = _steps(document.obj, error.path)
            yield document.remark(Level.ERROR, path, error.problem)
            return
        before: Path = ("layouts",) if document.kind == KIND else ()
        yield from _small_instances(document, layouts, before)
        return
    if document.kind == "ConfigMap":
        for key, text in mapping(document.obj, "data").items():
            yield from _check_file(document, str(key), text)


def _check_file(document: Document, key: str, text: Any) -> Iterator[Remark]:
    """A file of a ConfigMap; one of something else is not looked at."""
    try:
        obj = yaml.safe_load(text) if isinstance(text, str) else None
    except yaml.YAMLError:
        return
    if is_layouts(obj) or (isinstance(obj, dict) and obj.get("kind") == KIND):
        try:
            _decode(obj)
        except InvalidObjectError as error:
            yield document.remark(Level.ERROR, ("data", key), str(error))


def _decode(obj: Any) -> dict[str, Layout]:
    return decode_layouts(obj) if is_layouts(obj) else decode_node_class(obj).layouts


def _small_instances(
    document: Document, layouts: dict[str, Layout], before: Path
) -> Iterator[Remark]:
    """Compute instances smaller than their GPU instance, which mig-parted makes."""
    for layout, entries in layouts.items():
        for index, entry in enumerate(entries):
            for name, _ in entry.counts:
                if "c." in name:
                    where = (*before, "mig-configs", layout, index, "mig-devices", name)
                    yield document.remark(
                        Level.WARNING,
                        where,
                        "compute instances smaller than their GPU instance are not made here: a "
                        "node with this layout says that it cannot have it; name the whole "
                        f"profile ({name.partition('.')[2]})",
                    )


def _steps(obj: Any, path: str) -> Path:
    """The steps of a field's path in words: names of layouts and profiles have dots too."""
    steps: list[str | int] = []
    while path:
        if path.startswith("["):
            number, _, path = path[1:].partition("]")
            steps.append(int(number))
        else:
            known = obj if isinstance(obj, dict) else {}
            keys = [k for k in known if path == k or path.startswith((f"{k}.", f"{k}["))]
            key = max(keys, key=len, default=path)
            steps.append(key)
            path = path[len(key) :]
        path = path.removeprefix(".")
        try:
            obj = obj[steps[-1]]
        except (KeyError, IndexError, TypeError):
            obj = None
    return tuple(steps)
