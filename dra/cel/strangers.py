"""Devices of other drivers, made up to learn whether selectors select any of them.

What other drivers offer is not known here, and may change. Their drivers are called like what the
selectors compare with, and almost like it, so that ``==``, ``!=``, ``startsWith``, ``contains`` and
``in`` show what they let through. Some have no attributes, some those that the selectors name, with
values from the same texts; none has any of our domain.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any, NamedTuple

import msgspec

from dra.cel.data import DeviceData, SemverError, device_data, quantity_of, semver
from dra.common.quantity import QuantityError, parse_quantity

_TOKEN = re.compile(
    r"""[rR]?(?:"(?P<double>[^"\\\n]*)"|'(?P<single>[^'\\\n]*)')"""
    r"""|(?<![\w.])(?P<number>-?\d+)(?![\w.])|\b(?P<truth>true|false)\b|\.\s*\??\s*(?P<name>\w+)"""
)
_DOMAIN_NAME = re.compile(r"[A-Za-z0-9.-]+")
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


def literals(expressions: Iterable[str]) -> list[str]:
    """The texts that stand in ``expressions``, each once."""
    found = (t.value for t in _tokens(expressions))
    return [*dict.fromkeys(value for value in found if isinstance(value, str))]


def likely_domains(expressions: Iterable[str], driver: str) -> list[str]:
    """Texts that may be domains of attributes of others."""
    named = (t for t in literals(expressions) if _DOMAIN_NAME.fullmatch(t) and t != driver)
    return [*named][:MOST_DOMAINS]


def likely_fields(expressions: Iterable[str]) -> Iterator[StrangeFields]:
    """Values for all that ``expressions`` may read, in as many ways as are worth a try."""
    tokens = _tokens(expressions)
    names = [*dict.fromkeys(t.name for t in tokens if t.name)][:MOST_NAMES]
    found = dict.fromkeys((type(t.value), t.value) for t in tokens if t.value is not None)
    values = [value for _, value in found][:MOST_VALUES]
    alike = [dict.fromkeys(names, value) for value in (*values, 0, True, "other")]
    for chosen in (*alike, *_literals_beside(tokens, names)):
        for step in _STEPS:
            yield from _typed(chosen, step)


def _literals_beside(tokens: list[_Token], names: list[str]) -> Iterator[dict[str, Any]]:
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


_STANDARD = "resource.kubernetes.io"
"""Domain of attributes that all drivers share."""

_DOMAIN = re.compile(
    r"""device\s*\.\s*(?:attributes|capacity)\s*\[\s*\??\s*(?:"([^"\\]*)"|'([^'\\]*)')\s*\]"""
    r"""|(?:"([^"\\]*)"|'([^'\\]*)')\s*in\s+device\s*\.\s*(?:attributes|capacity)(?!\s*\[)"""
)
_READ = re.compile(r"device\s*\.\s*(?:attributes|capacity)\b")
_MOST_TEXTS = 64
"""Upper bound on the texts that are tried: an administrator writes them, and few."""

_MOST_DRIVERS = 8
"""Upper bound on the drivers whose devices have attributes."""


def reads_others(expressions: Iterable[str], driver: str) -> bool:
    """True if an expression looks at attributes that only another driver's devices have."""
    return any(domain not in (driver, _STANDARD) for domain in _named(expressions))


def reads_unknown(expressions: Iterable[str], driver: str) -> bool:
    """True if what an expression fails on for want of attributes others' devices may have.

    Those are attributes that all drivers share, and of a domain that is not spelt out. Not so where
    it looks at the domain of ``driver`` too: it may fail for that.
    """
    texts = [*expressions]
    named = _named(texts)
    return driver not in named and _reads_shared(texts, named)


def made_up(expressions: Iterable[str], driver: str) -> tuple[DeviceData, ...]:
    """Devices of drivers other than ``driver`` that ``expressions`` might select."""
    selectors = [*expressions]
    texts = literals(selectors)
    names = dict.fromkeys([*_beside(driver), *_around([driver, *texts][:_MOST_TEXTS])])
    bare = (device_data(name, {}, {}) for name in names if name and name != driver)
    if not _reads_shared(selectors, _named(selectors)):
        return (*bare,)
    return *bare, *_with_attributes(selectors, texts, driver)


def described(text: str) -> DeviceData:
    """A device of another driver that there is: driver, attributes, capacities as JSON.

    The last is whether several claims may have it (resource.k8s.io/v1, Device).
    """
    driver, attributes, capacity, shared = msgspec.json.decode(text)
    return device_data(driver, attributes, capacity, shared=shared)


def _named(expressions: Iterable[str]) -> list[str]:
    """Domains that are spelt out where they are read."""
    return [_first(m) for e in expressions for m in _DOMAIN.finditer(e)]


def _reads_shared(expressions: Iterable[str], named: list[str]) -> bool:
    """True if attributes are read that all drivers share, or of a domain that is not spelt out."""
    return _STANDARD in named or sum(len(_READ.findall(e)) for e in expressions) > len(named)


def _with_attributes(selectors: list[str], texts: list[str], driver: str) -> Iterator[DeviceData]:
    others = ["other.example.com", *(text for text in texts if text and text != driver)]
    shared = [_STANDARD, *likely_domains(selectors, driver)]
    for fields in likely_fields(selectors):
        for name in dict.fromkeys(others[:_MOST_DRIVERS]):
            domains = dict.fromkeys([*shared, name], fields.attributes)
            capacities = dict.fromkeys([*shared, name], fields.capacity)
            bare = device_data(name, {}, {})
            yield {**bare, "attributes": domains, "capacity": capacities}


def _beside(driver: str) -> Iterator[str]:
    """Drivers of the same vendor, of the same purpose, of as long a name, and any."""
    first, _, rest = driver.partition(".")
    yield from ("other.example.com", f"{first}.example.com", f"other.{rest}")
    yield from (f"x{driver[1:]}", f"{driver[:-1]}x")


def _around(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield from (text, f"{text}x", f"x{text}", f"x{text}x", f"x.{text}", f"{text}.x")


def _first(match: re.Match[str]) -> str:
    return next((group for group in match.groups() if group is not None), "")
