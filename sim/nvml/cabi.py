"""The C border: return codes, and arguments as a Python function sees them that replaces C."""

from __future__ import annotations

from ctypes import POINTER, Array, c_int, c_uint, c_ulonglong, c_void_p, cast, memmove
from enum import IntEnum
from typing import Any


class Return(IntEnum):
    """nvmlReturn_t, as far as the simulator uses it."""

    SUCCESS = 0
    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    NOT_FOUND = 6
    INSUFFICIENT_SIZE = 7
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    FUNCTION_NOT_FOUND = 13
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    OPERATING_SYSTEM = 17
    LIB_RM_VERSION_MISMATCH = 18
    IN_USE = 19
    INSUFFICIENT_RESOURCES = 23
    ARGUMENT_VERSION_MISMATCH = 25
    NOT_READY = 27
    INVALID_STATE = 29
    UNKNOWN = 999


class RefusedError(Exception):
    """The simulated hardware or library refuses; `code` is what the C function returns.

    The code is a plain integer because an injected fault may use one that `Return` lacks.
    """

    def __init__(self, code: int) -> None:
        super().__init__(f"NVML return code {int(code)}")
        self.code = int(code)


ERROR_STRINGS = {
    Return.SUCCESS: "The operation was successful",
    Return.UNINITIALIZED: "Uninitialized",
    Return.INVALID_ARGUMENT: "Invalid Argument",
    Return.NOT_SUPPORTED: "Not Supported",
    Return.NO_PERMISSION: "Insufficient Permissions",
    Return.NOT_FOUND: "Not Found",
    Return.INSUFFICIENT_SIZE: "Insufficient Size",
    Return.DRIVER_NOT_LOADED: "Driver Not Loaded",
    Return.TIMEOUT: "Timeout",
    Return.FUNCTION_NOT_FOUND: "Function Not Found",
    Return.GPU_IS_LOST: "GPU is lost",
    Return.RESET_REQUIRED: "GPU requires reset",
    Return.OPERATING_SYSTEM: "The operating system has blocked the request",
    Return.LIB_RM_VERSION_MISMATCH: "RM has detected an NVML/RM version mismatch",
    Return.IN_USE: "In use by another client",
    Return.INSUFFICIENT_RESOURCES: "Insufficient Resources",
    Return.ARGUMENT_VERSION_MISMATCH: "Argument version mismatch",
    Return.NOT_READY: "System is not in ready state",
    Return.INVALID_STATE: "Invalid state",
}


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
