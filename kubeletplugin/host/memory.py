"""Memory of the process, kept small: it runs on every GPU node, mostly idle, with many threads."""

from __future__ import annotations

import ctypes

_M_ARENA_MAX = -8  # malloc.h


def one_arena() -> None:
    """Let all threads allocate from one arena, where the C library is glibc.

    By default it gives up to eight per core, none of which ever shrinks: 2 MiB after a few scrapes.
    Called before threads start.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
