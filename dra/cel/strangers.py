"""Devices of other drivers, made up to learn whether selectors select any of them.

The offers of other drivers are not known here, and may change. A condition on attributes that such
devices may have is taken to hold for some device. All else is tried on devices without attributes.
The names of their drivers are those that the selectors compare with, and names almost like these,
so that ``==``, ``!=``, ``startsWith``, ``contains`` and ``in`` show what they let through.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

from dra.cel.data import DeviceData, device_data

_TOKEN = re.compile(
    r"""
      (?P<text> (?i:rb?|br) (?: \"{3}.*?\"{3} | '{3}.*?'{3} | "[^"\n]*" | '[^'\n]*' )
              | (?i:b?) (?: \"{3}(?:\\.|[^\\])*?\"{3} | '{3}(?:\\.|[^\\])*?'{3}
                          | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' ) )
    | (?P<blank> \s+ | //[^\n]* )
    | (?P<word> [A-Za-z_]\w* )
    | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)
_TEXT = re.compile(r"""(?:"([^"\\\n]*)"|'([^'\\\n]*)')""")
_DOMAIN = re.compile(
    r"""device\s*\.\s*(?:attributes|capacity)\s*\[\s*\??\s*(?:"([^"\\]*)"|'([^'\\]*)')\s*\]"""
    r"""|(?:"([^"\\]*)"|'([^'\\]*)')\s*in\s+device\s*\.\s*(?:attributes|capacity)(?!\s*\[)"""
)
_READ = re.compile(r"device\s*\.\s*(?:attributes|capacity)\b")
_MOST_TEXTS = 64
"""Upper bound on the texts that are tried: an administrator writes them, and few."""


def own_part(expressions: Iterable[str], driver: str) -> tuple[str, ...]:
    """Conjuncts of ``expressions`` that read attributes of ``driver``, or no attributes at all."""
    parts = (part for expression in expressions for part in _conjuncts(expression))
    return tuple(part for part in parts if _is_own(part, driver))


def made_up(expressions: Iterable[str], driver: str) -> tuple[DeviceData, ...]:
    """Devices of drivers other than ``driver`` that ``expressions`` might select."""
    texts = dict.fromkeys(_first(m) for e in expressions for m in _TEXT.finditer(e))
    names = dict.fromkeys([*_beside(driver), *_around([driver, *texts][:_MOST_TEXTS])])
    return tuple(device_data(name, {}, {}) for name in names if name and name != driver)


def described(text: str) -> DeviceData:
    """CEL data of an existing device of another driver.

    ``text`` is a JSON list: driver, attributes, capacities, and whether several claims may have the
    device (resource.k8s.io/v1, Device).
    """
    driver, attributes, capacity, shared = msgspec.json.decode(text)
    return device_data(driver, attributes, capacity, shared=shared)


def _conjuncts(expression: str) -> list[str]:
    """Operands of ``&&`` outside of all brackets, which must all hold.

    The whole expression if it has ``||`` or ``? :`` outside of brackets.
    """
    found: list[str] = []
    depth = start = 0
    before = ""
    for match in _TOKEN.finditer(expression):
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
    """True if ``expression`` reads attributes of ``driver``'s domain, or no attributes at all."""
    named = [_first(m) for m in _DOMAIN.finditer(expression)]
    return driver in named or not (named or _READ.search(expression))


def _beside(driver: str) -> Iterator[str]:
    """Names of other drivers: any, one of the same purpose, one of the same vendor, two as long."""
    first, _, rest = driver.partition(".")
    yield from ("other.example.com", f"{first}.example.com", f"other.{rest}")
    yield from (f"x{driver[1:]}", f"{driver[:-1]}x")


def _around(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield from (text, f"{text}x", f"x{text}", f"x{text}x", f"x.{text}", f"{text}.x")


def _first(match: re.Match[str]) -> str:
    return next((group for group in match.groups() if group is not None), "")
