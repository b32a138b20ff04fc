"""Attributes and capacities of devices of other drivers, made up from a selector's own text.

What selectors compare with shows what may satisfy them: each attribute that is named gets the
literals of the text as values, the one that stands beside it and others a little off.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any, NamedTuple

from dra.cel.library.semver import SemverError
from dra.cel.opaque import quantity_of, semver
from dra.common.quantity import QuantityError, parse_quantity

_TOKEN = re.compile(
    r"""[rR]?(?:"(?P<double>[^"\\\n]*)"|'(?P<single>[^'\\\n]*)')"""
    r"""|(?<![\w.])(?P<number>-?\d+)(?![\w.])|\b(?P<truth>true|false)\b|\.\s*\??\s*(?P<name>\w+)"""
)
_DOMAIN = re.compile(r"[A-Za-z0-9.-]+")
_NAME = re.compile(r"[A-Za-z_]\w*")
_PATTERN = re.compile(r"[\^$*+?()\[\]{}|\\]")
_STEPS = (0, 1, -1)

MOST_DOMAINS = 8
MOST_NAMES = 24
MOST_VALUES = 16
"""Upper bounds on what is taken from texts: an administrator writes them, and short."""


class StrangeFields(NamedTuple):
    """Values by name, the same in every domain that a device has."""

    attributes: dict[str, Any]
    capacity: dict[str, Any]


class _Token(NamedTuple):
    name: str
    value: str | int | bool | None


def texts(expressions: Iterable[str]) -> list[str]:
    """The texts that stand in ``expressions``, each once."""
    found = (t.value for t in _tokens(expressions))
    return [*dict.fromkeys(value for value in found if isinstance(value, str))]


def domains(expressions: Iterable[str], driver: str) -> list[str]:
    """Texts that may be domains of attributes of others."""
    named = (t for t in texts(expressions) if _DOMAIN.fullmatch(t) and t != driver)
    return [*named][:MOST_DOMAINS]


def fields(expressions: Iterable[str]) -> Iterator[StrangeFields]:
    """Values for all that ``expressions`` may read, in as many ways as are worth a try."""
    tokens = _tokens(expressions)
    names = [*dict.fromkeys(t.name for t in tokens if t.name)][:MOST_NAMES]
    found = dict.fromkeys((type(t.value), t.value) for t in tokens if t.value is not None)
    values = [value for _, value in found][:MOST_VALUES]
    alike = [dict.fromkeys(names, value) for value in (*values, 0, True, "other")]
    for chosen in (*alike, *_beside(tokens, names)):
        for step in _STEPS:
            yield from _typed(chosen, step)


def _beside(tokens: list[_Token], names: list[str]) -> Iterator[dict[str, Any]]:
    """Each name with the literal after it, or before it, where it stands first, or last."""
    for order in (tokens, tokens[::-1]):
        first, last = dict[str, Any](), dict[str, Any]()
        literal: Any = "other"
        for token in reversed(order):
            if token.value is not None:
                literal = token.value
            elif token.name in names:
                first[token.name] = literal
                last.setdefault(token.name, literal)
        yield first
        yield last


def _typed(values: dict[str, Any], step: int) -> Iterator[StrangeFields]:
    """``values``, or such as are a little off; as texts and, where they are some, as versions."""
    texts = {name: _off(value, step) for name, value in values.items()}
    capacity = {name: _quantity(value, step) for name, value in values.items()}
    yield StrangeFields(texts, capacity)
    versions = {name: _version(value) for name, value in texts.items()}
    if versions != texts:
        yield StrangeFields(versions, capacity)


def _tokens(expressions: Iterable[str]) -> list[_Token]:
    """Names and literals in their order; a text that may be a name is both.

    Each token has either a name or a value.
    """
    found = []
    for expression in expressions:
        for match in _TOKEN.finditer(expression):
            text = match["double"] if match["double"] is not None else match["single"]
            if text is not None:
                found.append(_Token("", text))
                if _NAME.fullmatch(text):
                    found.append(_Token(text, None))
            elif match["number"]:
                found.append(_Token("", int(match["number"])))
            elif match["truth"]:
                found.append(_Token("", match["truth"] == "true"))
            else:
                found.append(_Token(match["name"], None))
    return found


def _off(value: Any, step: int) -> Any:
    """``value``, or one on this side of it."""
    if not step:
        return value
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + step
    version = _version(value)
    if version != value:
        major, _, rest = str(value).partition(".")
        return f"{max(0, int(major) + step)}.{rest}"
    return f"{value}x" if step > 0 else _PATTERN.sub("", value)


def _version(value: Any) -> Any:
    if isinstance(value, str):
        with contextlib.suppress(SemverError):
            return semver(value)
    return value


def _quantity(value: Any, step: int) -> Any:
    try:
        number = parse_quantity(str(value))
    except QuantityError:
        number = Fraction(1)
    return quantity_of(number * Fraction(2) ** step)
