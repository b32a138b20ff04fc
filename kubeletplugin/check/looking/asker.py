"""Calls of NVML about one GPU, whose refusals are kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from kubeletplugin.nvml.errors import GpuLostError, NvmlError
from kubeletplugin.nvml.session.session import Session

T = TypeVar("T")
U = TypeVar("U")


@dataclass(slots=True)
class Asker:
    """Asks one GPU, and keeps what it refused instead of raising."""

    session: Session
    gpu: str
    errors: list[str] = field(default_factory=list)
    lost: bool = False

    def __call__(self, function: Callable[..., Any], *arguments: Any, instead: T) -> Any | T:
        """The answer, or ``instead``."""
        return self.tried(partial(self.session.call, function, *arguments, gpu=self.gpu), instead)

    def tried(self, work: Callable[[], T], instead: U) -> T | U:
        """Result of ``work``, or ``instead`` where it raises an NvmlError."""
        try:
            return work()
        except NvmlError as error:
            self.lost = self.lost or isinstance(error, GpuLostError)
            self.errors.append(str(error))
            return instead
