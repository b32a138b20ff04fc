"""Questions about selectors and their answers, in the form sent to the evaluator of CEL."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec


class SelectorError(ValueError):
    """An expression that does not compile."""


class CostlySelectorError(SelectorError):
    """An expression that needs more time or memory than a selector may have."""


class GpuIdentity(msgspec.Struct, frozen=True, array_like=True):
    """Identity of a GPU among others of the same kind."""

    uuid: str = ""
    pci_bus_id: str = ""
    pcie_root: str = ""
    index: int = 0


class Job(msgspec.Struct, frozen=True, omit_defaults=True):
    """Selectors which must all hold, and the devices to try them on.

    With ``devices``, CEL data as ``celdata`` has them: which of them are selected, of every GPU in
    ``gpus`` if there are any. Without devices: whether the one expression compiles.
    """

    expressions: tuple[str, ...]
    devices: tuple[dict[str, Any], ...] = ()
    gpus: tuple[GpuIdentity, ...] = ()


class Selected(msgspec.Struct, frozen=True, omit_defaults=True):
    """Indices of the devices that are selected; ``error`` is the first failure at run time."""

    devices: tuple[int, ...] = ()
    error: str = ""


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Answer to a job.

    Of an expression alone: ``error``, why it does not compile, and ``per_gpu``, whether its result
    may differ between GPUs of one kind. Else ``selected``, one entry or one for each GPU. ``cost``
    is in seconds of CPU time. ``costly``: more was needed than a selector may have, and ``error``
    says of what.
    """

    error: str = ""
    per_gpu: bool = False
    selected: tuple[Selected, ...] = ()
    cost: float = 0.0
    costly: bool = False


class Evaluator(Protocol):
    """Evaluator of selectors."""

    def answer(self, job: Job) -> Answer:
        """Do ``job``. May raise instead, when there is no answer now."""


def shortened(expression: str) -> str:
    """Beginning of an expression, cut to the room of a message."""
    limit = 120
    return expression if len(expression) <= limit else expression[: limit - 3] + "..."
