"""Devices of other drivers, made up to learn whether selectors select any of them.

What other drivers offer is not known here, and may change. The devices have no attributes; their
drivers are called like what the selectors compare with, and almost like it, so that ``==``, ``!=``,
``startsWith``, ``contains`` and ``in`` show what they let through.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from dra.cel.celdata import DeviceData, device_data

_STANDARD = "resource.kubernetes.io"
"""Domain of attributes that all drivers share."""

_TEXT = re.compile(r"""[rR]?(?:"([^"\\\n]*)"|'([^'\\\n]*)')""")
_DOMAIN = re.compile(
    r"""device\s*\.\s*(?:attributes|capacity)\s*\[\s*\??\s*(?:"([^"\\]*)"|'([^'\\]*)')\s*\]"""
    r"""|(?:"([^"\\]*)"|'([^'\\]*)')\s*in\s+device\s*\.\s*(?:attributes|capacity)(?!\s*\[)"""
)
_READ = re.compile(r"device\s*\.\s*(?:attributes|capacity)\b")
_MOST_TEXTS = 64
"""Upper bound on the texts that are tried: an administrator writes them, and few."""


def reads_others(expressions: Iterable[str], driver: str) -> bool:
    """True if an expression looks at attributes that only another driver's devices have."""
    named = (_first(m) for e in expressions for m in _DOMAIN.finditer(e))
    return any(domain not in (driver, _STANDARD) for domain in named)


def reads_unknown(expressions: Iterable[str], driver: str) -> bool:
    """True if what an expression fails on for want of attributes others' devices may have.

    Those are attributes that all drivers share, and of a domain that is not spelt out. Not so where
    it looks at the domain of ``driver`` too: it may fail for that.
    """
    texts = [*expressions]
    named = [_first(m) for e in texts for m in _DOMAIN.finditer(e)]
    reads = sum(len(_READ.findall(e)) for e in texts)
    return driver not in named and (_STANDARD in named or reads > len(named))


def made_up(expressions: Iterable[str], driver: str) -> tuple[DeviceData, ...]:
    """Devices of drivers other than ``driver`` that ``expressions`` might select."""
    texts = dict.fromkeys(_first(m) for e in expressions for m in _TEXT.finditer(e))
    names = dict.fromkeys([*_beside(driver), *_around([driver, *texts][:_MOST_TEXTS])])
    return tuple(device_data(name, {}, {}) for name in names if name and name != driver)


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
