"""Picking of fields out of an object."""

from __future__ import annotations

from collections.abc import Iterable

from dra.common.resources import Obj


def picked(mapping: Obj, fields: Iterable[str]) -> Obj:
    """Those of ``fields`` that ``mapping`` has, in their order."""
    return {key: mapping[key] for key in fields if key in mapping}
