"""Calls of which drivers know two forms: the second is asked first, as it tells more."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import pynvml

from kubeletplugin.nvml.errors import NvmlError
from kubeletplugin.nvml.session.session import Session

_UNKNOWN_FORM = frozenset(
    {
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
    }
)
"""Codes by which drivers refuse the second form: older ones, and some of A30 that know it."""


def newest_form(session: Session, function: Callable[..., Any], *arguments: Any, gpu: str) -> Any:
    """The answer to the second form of a call, or to the first where the driver has no second.

    ``function`` is one of pynvml's with an argument ``version``.

    Raises:
        NvmlError: what the driver says to the form that it has.
    """
    try:
        return session.call(function, *arguments, gpu=gpu)
    except NvmlError as error:
        if error.code not in _UNKNOWN_FORM:
            raise

    @wraps(function)
    def first_form(*arguments: Any) -> Any:
        return function(*arguments, version=1)

    return session.call(first_form, *arguments, gpu=gpu)
