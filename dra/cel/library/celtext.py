"""``find`` and ``findAll`` of Kubernetes' CEL (k8s.io/apiserver/pkg/cel/library, regex).

By RE2, as there: a pattern comes from whoever writes a claim, and must not be able to keep the
controller busy.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

import re2
from cel_expr_python import cel

from dra.cel.declaring import INT, STRING, declare, method

_STRINGS = cel.Type.List(cel.Type.STRING)


def functions() -> Iterable[Any]:
    """Declarations with their implementations."""
    yield declare("find", method(_find, STRING, STRING, STRING))
    yield declare(
        "findAll",
        method(_find_all, _STRINGS, STRING, STRING),
        method(_find_all, _STRINGS, STRING, STRING, INT),
    )


def _find(text: str, pattern: str) -> str:
    found = re2.search(pattern, text)
    return str(found.group()) if found else ""


def _find_all(text: str, pattern: str, limit: int = -1) -> list[str]:
    found = (str(match.group()) for match in re2.finditer(pattern, text))
    return list(found) if limit < 0 else list(islice(found, limit))
