"""Wishes for the preparation that the configuration of a claim and of its classes holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from api.config import PreparationConfig, decode_preparation
from api.errors import InvalidObjectError
from dra.common.resources import at


def preparation(config: Iterable[Mapping[str, Any]], *, driver: str) -> PreparationConfig:
    """Each field as the last entry for ``driver`` has it that names the field.

    ``config`` is ``devices.config`` of an allocation, in which the entries of classes come first.
    Entries that cannot be understood are left out.
    """
    fields: dict[str, Any] = {}
    for entry in config:
        if at(entry, "opaque", "driver") != driver:
            continue
        try:
            fields |= decode_preparation(entry["opaque"].get("parameters"))
        except InvalidObjectError:
            continue
    return PreparationConfig(**fields)
