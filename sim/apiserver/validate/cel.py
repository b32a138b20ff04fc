"""Syntax check of device selectors in CEL; without a CEL runtime every text passes.

The functions that Kubernetes adds to CEL are not declared here, so only what is certainly wrong is
refused: bad syntax, unknown variables, and results that are no boolean.
"""

from __future__ import annotations

import functools
import re
from typing import Any

try:
    from cel_expr_python import cel
    from cel_expr_python.ext import ext_bindings, ext_optional, ext_strings
except ImportError:
    cel = None

_UNDECLARED = re.compile(r"undeclared reference to '([^']+)'")
_REPEATING = re.compile(r"\.opt(?:Flat)?Map\s*\(")
_MOST_REPEATING = 12
"""Calls of macros that repeat what they are called on: a chain of n has 2^n expressions. A text
with more passes unread, as compiling it would take all the memory of this server."""


@functools.cache
def _environment() -> Any:
    return cel.NewEnv(
        variables={"device": cel.Type.DYN},
        extensions=[
            ext_optional.ExtOptional(),
            ext_strings.ExtStrings(),
            ext_bindings.ExtBindings(),
        ],
    )


@functools.lru_cache(maxsize=1024)
def complaint_about(expression: str) -> str | None:
    """Gives what is wrong with a selector expression, or None."""
    if cel is None or len(_REPEATING.findall(expression)) > _MOST_REPEATING:
        return None
    try:
        _environment().compile(expression, disable_check=True)
    except RuntimeError as syntax:
        return f"compilation failed: {_detail(syntax)}"
    try:
        compiled = _environment().compile(expression)
    except RuntimeError as unknown:
        for name in _UNDECLARED.findall(str(unknown)):
            if not re.search(rf"\b{re.escape(name)}\s*\(", expression):
                return f"compilation failed: {_detail(unknown)}"
        return None
    if compiled.return_type() not in (cel.Type.BOOL, cel.Type.DYN):
        return "must evaluate to bool or the unknown type"
    return None


def _detail(error: RuntimeError) -> str:
    text = str(error).removeprefix("INVALID_ARGUMENT: ").removesuffix(" [INVALID_ARGUMENT]")
    return text.strip()
