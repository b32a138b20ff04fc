"""Return codes of NVML (nvml.h) and the one exception that carries them inside the simulator."""

from enum import IntEnum


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
