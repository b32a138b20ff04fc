"""Errors that this package raises.

::

    CdiError
     +-- SpecError    the spec breaks a rule of the CDI specification
     +-- StoreError   the spec directory cannot be read or written
"""

from __future__ import annotations


class CdiError(Exception):
    """A CDI spec that cannot be built or kept."""


class SpecError(CdiError):
    """The spec breaks a rule of the CDI specification; the message names the field."""


class StoreError(CdiError):
    """The spec directory refused; the message names the path and what the system said."""
