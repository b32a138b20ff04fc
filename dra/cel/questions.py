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
    """Selectors that must all hold, and the devices to try them on.

    ``devices``: CEL data as in ``dra.cel.data``. The answer says which of them are selected, once
    for each GPU in ``gpus`` if there are any. Without devices the answer says whether the only
    expression compiles.
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

    For a job without devices ``per_gpu`` says whether the expression's result may differ between
    GPUs of one kind. For others ``selected`` has one entry, or one for each GPU. ``error``: why the
    expression does not compile, or that the job needed more than a selector may have; empty
    otherwise. ``cost``: seconds of CPU time. ``costly``: the job needed more time or memory than a
    selector may have, and ``error`` says which.
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
