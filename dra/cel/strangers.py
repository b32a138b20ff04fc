"""Devices of other drivers, made up to learn whether selectors select any of them.

What other drivers offer is not known here, and may change. What selectors ask of attributes that
such devices may have is taken to hold for some; the rest is tried on devices without attributes,
whose drivers are called like what the selectors compare with, and almost like it, so that ``==``,
``!=``, ``startsWith``, ``contains`` and ``in`` show what they let through.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

from dra.cel.data import DeviceData, device_data
from dra.cel.spelling import TOKEN

_TEXT = re.compile(r"""(?:"([^"\\\n]*)"|'([^'\\\n]*)')""")
_DOMAIN = re.compile(
    r"""device\s*\.\s*(?:attributes|capacity)\s*\[\s*\??\s*(?:"([^"\\]*)"|'([^'\\]*)')\s*\]"""
    r"""|(?:"([^"\\]*)"|'([^'\\]*)')\s*in\s+device\s*\.\s*(?:attributes|capacity)(?!\s*\[)"""
)
_READ = re.compile(r"device\s*\.\s*(?:attributes|capacity)\b")
_MOST_TEXTS = 64
"""Upper bound on the texts that are tried: an administrator writes them, and few."""


def own_part(expressions: Iterable[str], driver: str) -> tuple[str, ...]:
    """Those conjuncts of ``expressions`` that read attributes of ``driver``, or none."""
    parts = (part for expression in expressions for part in _conjuncts(expression))
    return tuple(part for part in parts if _is_own(part, driver))


def made_up(expressions: Iterable[str], driver: str) -> tuple[DeviceData, ...]:
    """Devices of drivers other than ``driver`` that ``expressions`` might select."""
    texts = dict.fromkeys(_first(m) for e in expressions for m in _TEXT.finditer(e))
    names = dict.fromkeys([*_beside(driver), *_around([driver, *texts][:_MOST_TEXTS])])
    return tuple(device_data(name, {}, {}) for name in names if name and name != driver)


def described(text: str) -> DeviceData:
    """A device of another driver that there is: driver, attributes, capacities as JSON.

    The last is whether several claims may have it (resource.k8s.io/v1, Device).
    """
    driver, attributes, capacity, shared = msgspec.json.decode(text)
    return device_data(driver, attributes, capacity, shared=shared)


def _conjuncts(expression: str) -> list[str]:
    """Operands that each have to hold: those of ``&&`` outside of all brackets."""
    found: list[str] = []
    depth = start = 0
    before = ""
    for match in TOKEN.finditer(expression):
        sign, pair = match[0], expression[match.start() : match.start() + 2]
        if sign in ("(", "[", "{"):
            depth += 1
        elif sign in (")", "]", "}"):
            depth -= 1
        elif not depth and (pair == "||" or (sign == "?" and before != ".")):
            return [expression]
        elif not depth and pair == "&&":
            found.append(expression[start : match.start()])
            start = match.start() + 2
        before = sign
    return [*found, expression[start:]]


def _is_own(expression: str, driver: str) -> bool:
    """True if it reads attributes of ``driver``'s domain, or none at all."""
    named = [_first(m) for m in _DOMAIN.finditer(expression)]
    return driver in named or not (named or _READ.search(expression))


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
