"""Wishes in the configuration of a claim and of its classes: what it says of one field."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from api.errors import InvalidObjectError
from dra.common.resources import at

T = TypeVar("T", bound=str)


def last_wish(
    config: Iterable[Mapping[str, Any]],
    decode: Callable[[object], T | None],
    *,
    driver: str,
) -> T | None:
    """The wish of the last entry for ``driver`` that has one, None without any.

    ``config`` is ``devices.config`` of an allocation, in which the entries of classes come first.
    ``decode`` reads the parameters of an entry; entries that it cannot understand are left out.
    """
    wish = None
    for entry in config:
        if at(entry, "opaque", "driver") != driver:
            continue
        try:
            wish = decode(entry["opaque"].get("parameters")) or wish
        except InvalidObjectError:
            continue
    return wish
