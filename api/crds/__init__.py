"""CustomResourceDefinition of MigNode, as an administrator applies it."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import yaml


def mignode_definition() -> dict[str, Any]:
    """The CustomResourceDefinition in ``mignodes.yaml``; every call reads the file."""
    text = files(__name__).joinpath("mignodes.yaml").read_text()
    # libyaml's loader: Python's own takes twenty times as long, at each start of a simulator.
    definition: dict[str, Any] = yaml.load(text, Loader=yaml.CSafeLoader)
    return definition
