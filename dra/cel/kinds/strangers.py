"""Devices of other drivers, made up to learn whether selectors select any of them.

What other drivers offer is not known here, and may change. Their drivers are called like what the
selectors compare with, and almost like it, so that ``==``, ``!=``, ``startsWith``, ``contains`` and
``in`` show what they let through. Some have no attributes, some those that the selectors name, with
values from the same texts (``strange_attributes``); none has any of our domain.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

from dra.cel.celdata import DeviceData, device_data
from dra.cel.kinds import strange_attributes

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
    texts = strange_attributes.texts(selectors)
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
    shared = [_STANDARD, *strange_attributes.domains(selectors, driver)]
    for fields in strange_attributes.fields(selectors):
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
