"""Amounts as the API server writes them, so that what was written equals what is read back."""

from __future__ import annotations

_SUFFIXES = ("Mi", "Gi", "Ti", "Pi")
_STEP = 1024


def mebibytes(amount: int) -> str:
    """``amount`` MiB as a canonical quantity: the largest suffix that leaves a whole number."""
    step = 0
    while amount and amount % _STEP == 0 and step < len(_SUFFIXES) - 1:
        amount //= _STEP
        step += 1
    return f"{amount}{_SUFFIXES[step]}" if amount else "0"
