"""Limits on the memory and time that the evaluation of selectors may take."""

from __future__ import annotations

SECONDS = 0.25
"""CPU time for one question: a selector with those of its class, on the devices of one kind of GPU
or on 128 GPUs. Usual ones take some hundred microseconds."""

MEBIBYTES = 64
"""Memory for one question, besides what the evaluating process takes at its start."""

KEPT_MEBIBYTES = 24
"""Growth of a worker's memory at which the worker is replaced: compiled expressions stay in it, and
the runtime leaks a little."""

NICENESS = 10
"""Niceness of the workers: the process that decides goes first."""
