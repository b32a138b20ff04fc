"""Files that configure classes of nodes: read with the same words wherever one is looked at."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import yaml

from api.errors import InvalidObjectError
from api.layouts import Layout, decode_layouts, is_layouts
from api.nodeclass import KIND, NodeClass, decode_node_class
from dra.gpu.layouts.choosing import Classes

SUFFIXES: Final = (".yaml", ".yml", ".json")
"""Ends of the names of files that count; others of a directory are somebody else's."""


def read_file(text: str | bytes) -> NodeClass | dict[str, Layout]:
    """The class of nodes that a file is, or the layouts by name of one of mig-parted's.

    Raises:
        InvalidObjectError: it is neither; names the field and what is allowed.
    """
    try:
        obj: Any = yaml.load(text, Loader=yaml.CSafeLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidObjectError(KIND, "", f"no YAML: {' '.join(str(error).split())}") from error
    return decode_layouts(obj) if is_layouts(obj) else decode_node_class(obj)


def read_files(files: Iterable[tuple[str, bytes | OSError]]) -> Classes:
    """Classes, layouts and problems of files, by name and content or why that cannot be read.

    A class is called like its file, without the end of its name.
    """
    classes: dict[str, NodeClass] = {}
    layouts: dict[str, Layout] = {}
    problems: dict[str, str] = {}
    for name, content in files:
        stem = name.rpartition(".")[0]
        try:
            if isinstance(content, OSError):
                raise content
            found = read_file(content)
        except (OSError, InvalidObjectError) as error:
            problems[stem] = f"{name}: {error}"
            continue
        if isinstance(found, NodeClass):
            classes[stem] = found
        else:
            layouts |= found
    return Classes(classes, layouts, problems)
