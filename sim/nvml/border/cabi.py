"""The C calling convention, seen from a Python function that replaces a C function.

Arguments arrive as ctypes would pass them to C: numbers or ctypes integers, handles as opaque
pointers, out-parameters as `byref()` objects, pointers or arrays, NULL as None.
"""

from ctypes import POINTER, Array, c_int, c_uint, c_ulonglong, c_void_p, cast, memmove
from typing import Any

from sim.nvml.codes import RefusedError, Return


def integer(argument: Any) -> int:
    """A number passed by value."""
    return int(getattr(argument, "value", argument))


def text(argument: Any) -> str:
    """A char* argument; NULL is INVALID_ARGUMENT."""
    value = getattr(argument, "value", argument)
    if value is None:
        raise RefusedError(Return.INVALID_ARGUMENT)
    return bytes(value).decode()


def address(handle: Any) -> int:
    """The address in an opaque handle; 0 for NULL."""
    return cast(handle, c_void_p).value or 0


def structure(reference: Any, kind: Any) -> Any:
    """The caller's struct of this ctypes type; NULL is INVALID_ARGUMENT."""
    if reference is None:
        raise RefusedError(Return.INVALID_ARGUMENT)
    return cast(reference, POINTER(kind)).contents


def versioned(reference: Any, kind: Any, version: int) -> Any:
    """The caller's struct, after checking the version word with which it begins."""
    found = structure(reference, c_uint).value
    if found != version:
        raise RefusedError(Return.ARGUMENT_VERSION_MISMATCH)
    return structure(reference, kind)


def put_uint(reference: Any, value: int) -> None:
    """Stores an unsigned int."""
    structure(reference, c_uint).value = value


def put_int(reference: Any, value: int) -> None:
    """Stores an int."""
    structure(reference, c_int).value = value


def put_ulonglong(reference: Any, value: int) -> None:
    """Stores an unsigned long long."""
    structure(reference, c_ulonglong).value = value


def put_handle(reference: Any, value: int) -> None:
    """Stores an opaque handle."""
    structure(reference, c_void_p).value = value


def put_handles(array: Any, values: list[int], *, room: int) -> None:
    """Stores handles into an array that NVML's contract says has `room` elements.

    A shorter array would be overrun by the real library; here it is INVALID_ARGUMENT.
    """
    if array is None or (isinstance(array, Array) and len(array) < room):
        raise RefusedError(Return.INVALID_ARGUMENT)
    slots = cast(array, POINTER(c_void_p))
    for position, value in enumerate(values):
        slots[position] = value


def put_text(buffer: Any, length: Any, value: str) -> None:
    """Stores a NUL-terminated string into a buffer of `length` bytes."""
    content = value.encode() + b"\0"
    if buffer is None:
        raise RefusedError(Return.INVALID_ARGUMENT)
    if len(content) > integer(length):
        raise RefusedError(Return.INSUFFICIENT_SIZE)
    memmove(buffer, content, len(content))


def pointer_field(value: int, kind: Any) -> Any:
    """A handle as the pointer type of a struct's field."""
    return cast(c_void_p(value), kind)
