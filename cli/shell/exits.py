"""Exit codes. Scripts rely on them: keep them."""

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
