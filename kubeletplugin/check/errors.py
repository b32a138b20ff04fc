"""Errors that end a check before it is complete."""

from __future__ import annotations


class CheckError(Exception):
    """A person has to do something first; the text says what."""


class RefusedError(CheckError):
    """The GPU is not one on which slices may be made and removed."""


class StoppedError(CheckError):
    """Somebody has asked the check to end."""
