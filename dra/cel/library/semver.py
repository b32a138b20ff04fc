"""Semantic versions (semver.org 2.0), compared as Kubernetes' CEL library compares them."""

from __future__ import annotations

import re
from dataclasses import dataclass

_NUMBER = r"(?:0|[1-9]\d*)"
_IDENTIFIER = r"(?:0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*)"
_FORM = re.compile(
    rf"(?P<major>{_NUMBER})\.(?P<minor>{_NUMBER})\.(?P<patch>{_NUMBER})"
    rf"(?:-(?P<pre>{_IDENTIFIER}(?:\.{_IDENTIFIER})*))?"
    r"(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?",
    re.ASCII,
)
_PARTS = 3


class SemverError(ValueError):
    """A text that is no semantic version."""


@dataclass(frozen=True, slots=True)
class Semver:
    """A version; the build part is no part of it, since it decides no comparison."""

    major: int
    minor: int
    patch: int
    pre: str = ""

    def __str__(self) -> str:
        core = f"{self.major}.{self.minor}.{self.patch}"
        return f"{core}-{self.pre}" if self.pre else core

    def order(self) -> tuple[object, ...]:
        """A key whose order is the precedence of semver.org, rule 11."""
        identifiers = tuple(
            (0, int(part), "") if part.isdigit() else (1, 0, part)
            for part in self.pre.split(".")
            if part
        )
        return (self.major, self.minor, self.patch, not self.pre, identifiers)


def parse_semver(text: str, *, normalize: bool = False) -> Semver:
    """The version in ``text``; ``normalize`` admits ``v1.2`` and leading zeros.

    Raises:
        SemverError: the text is no version.
    """
    match = _FORM.fullmatch(_normalized(text) if normalize else text)
    if match is None:
        raise SemverError(f"{text[:64]!r} is no semantic version (such as 12.4.0)")
    return Semver(int(match["major"]), int(match["minor"]), int(match["patch"]), match["pre"] or "")


def _normalized(text: str) -> str:
    text = text.removeprefix("v")
    core = re.split(r"[-+]", text, maxsplit=1)[0]
    parts = [part.lstrip("0") or "0" if part.isdigit() else part for part in core.split(".")]
    padded = parts + ["0"] * (_PARTS - len(parts))
    return ".".join(padded) + text[len(core) :]
