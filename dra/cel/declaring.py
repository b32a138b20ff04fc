"""Declaration of functions to the CEL runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cel_expr_python import cel

BOOL, INT, STRING, DYN = cel.Type.BOOL, cel.Type.INT, cel.Type.STRING, cel.Type.DYN
MAP = cel.Type.Map(cel.Type.STRING, cel.Type.DYN)
"""The type of what the runtime has no type for."""
LIST = cel.Type.List(cel.Type.DYN)

OWN = "own:"
"""Beginning of the ids of our own overloads."""

Overload = Callable[[str], Any]


def method(impl: Callable[..., Any], returns: Any, *parameters: Any) -> Overload:
    """An overload that is called on its first parameter."""
    return lambda overload_id: cel.Overload(
        overload_id, return_type=returns, parameters=[*parameters], is_member=True, impl=impl
    )


def function(impl: Callable[..., Any], returns: Any, *parameters: Any) -> Overload:
    """An overload that is called by its name alone."""
    return lambda overload_id: cel.Overload(
        overload_id, return_type=returns, parameters=[*parameters], impl=impl
    )


def declare(name: str, *overloads: Overload) -> Any:
    """The function ``name``, for ``cel.NewEnv``."""
    return cel.FunctionDecl(
        name, [overload(f"{OWN}{name}_{n}") for n, overload in enumerate(overloads)]
    )
