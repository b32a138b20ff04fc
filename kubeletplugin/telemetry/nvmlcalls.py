"""Calls of NVML as metrics."""

from __future__ import annotations

from dra.monitoring import PREFIX
from dra.monitoring.metrics import Series, Tallies

_BOUNDS = (0.0001, 0.001, 0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)


def nvml_calls() -> Tallies:
    """Tallies by function and code, which is an nvmlReturn_t by name, or HANG."""
    return Tallies(
        Series(
            f"{PREFIX}nvml_calls_total",
            "Calls of NVML; code is an nvmlReturn_t without its prefix, or HANG.",
            ("operation", "code"),
        ),
        Series(
            f"{PREFIX}nvml_call_duration_seconds",
            "Time that calls of NVML took, or until they were given up.",
            ("operation",),
        ),
        bounds=_BOUNDS,
    )
