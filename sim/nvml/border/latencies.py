"""Latencies of NVML's functions as they were measured on real hardware, by a report of a check.

`python -m kubeletplugin check --create GPU --json FILE` measures how long each call takes; a
simulated machine takes the median of each function. Functions that the report lacks take no time.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

_SUFFIX = re.compile(r"(_v\d+|V|WithFlags)$")


class _Times(msgspec.Struct):
    """Times of a function in milliseconds; what else a report has is left out."""

    median: float


class _Report(msgspec.Struct):
    """Report of a check; what else it has is left out."""

    times: dict[str, _Times]


def plain(function: str) -> str:
    """A function's name without the version that ends the names of C functions."""
    return _SUFFIX.sub("", function)


def read_latencies(report: Path) -> dict[str, float]:
    """Seconds by plain name of a function.

    Raises:
        LookupError: the file is no report of a check, or cannot be read.
    """
    try:
        times = msgspec.json.decode(report.read_bytes(), type=_Report).times
    except (OSError, msgspec.MsgspecError) as error:
        raise LookupError(f"{report} is no report of `kubeletplugin check`: {error}") from error
    return {plain(name): each.median / 1000 for name, each in times.items()}


def latency(latencies: Mapping[str, float], function: str) -> float:
    """Seconds that a C function takes."""
    return latencies.get(plain(function), 0.0) if latencies else 0.0
