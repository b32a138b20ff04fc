"""Exit codes, which scripts rely on, and the error that carries one."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Result of a command, or the reason why it could not look."""

    OK = 0
    FINDING = 1
    """Something waits, is wrong, or is not done yet."""
    USAGE = 2
    UNREACHABLE = 3
    """No usable kubeconfig, or no answer from the API server."""
    NOT_FOUND = 4
    FORBIDDEN = 5
    INTERRUPTED = 130


class CliError(Exception):
    """A command cannot go on; the message says why and what to do."""

    def __init__(self, code: Exit, message: str) -> None:
        super().__init__(message)
        self.code = code


def version() -> str:
    """Version of the installed package, or why there is none."""
    from importlib.metadata import PackageNotFoundError  # noqa: PLC0415 - rarely asked for
    from importlib.metadata import version as installed  # noqa: PLC0415 - as above

    try:
        return installed("dra-driver-nvidia-mig")
    except PackageNotFoundError:
        return "unknown: the package is not installed"
