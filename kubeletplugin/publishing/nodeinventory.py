"""Inventory of the node: the state that its MigNode and ResourceSlices are to show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from dra.gpu.inventory import Answer, Drain, FailedClaim, Gpu, Inventory, NodeMode
from kubeletplugin.gpus.hardware import Hardware
from kubeletplugin.journal.journal import Journal
from kubeletplugin.nvml.errors import at_hand
from kubeletplugin.options import Options
from kubeletplugin.publishing.allocatormode import AllocatorMode
from kubeletplugin.telemetry.readiness import Readiness


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Outcomes of what was to be made for claims; the fields are the Inventory's."""

    failed_claims: tuple[FailedClaim, ...] = ()
    resumed: str = ""
    capabilities: tuple[str, ...] = ()
    answers: tuple[Answer, ...] = ()


class NodeInventory:
    """Puts it together anew whenever it is asked. Thread-safe.

    ``gpus`` are all GPUs with their problems, ``drain`` is what an administrator drains,
    ``missing`` says what the node lacks for containers, ``cdi_hook`` is their hook program.
    ``node_mode`` is what is to become of the GPUs.
    ``unseen`` is the reason of GPUs of which only is known what the MigNode said ``before``.
    """

    def __init__(  # noqa: PLR0913 - whoever knows a part of it
        self,
        options: Options,
        mode: AllocatorMode,
        readiness: Readiness,
        *,
        hardware: Hardware,
        journal: Journal,
        gpus: Callable[[], tuple[Gpu, ...]],
        drain: Callable[[], Drain | None],
        missing: Callable[[], str] = str,
        cdi_hook: Callable[[], str] = str,
        unseen: Callable[[], str] = str,
        before: Callable[[], Inventory | None] = lambda: None,
        node_mode: Callable[[], NodeMode | None] = lambda: None,
        outcomes: Callable[[], Outcomes] = Outcomes,
    ) -> None:
        self._options = options
        self._mode = mode
        self._readiness = readiness
        self._hardware = hardware
        self._journal = journal
        self._gpus = gpus
        self._drain = drain
        self._missing = missing
        self._unseen = unseen
        self._before = before
        self._cdi_hook = cdi_hook
        self._node_mode = node_mode
        self._outcomes = outcomes

    def of_mignode(self) -> Inventory | None:
        """Inventory for the MigNode; None also while the allocator is not decided."""
        return None if self._mode.allocator is None else self.known()

    def known(self) -> Inventory | None:
        """Known inventory; None until the first look at the GPUs has ended, well or not."""
        hardware, ready, reason = self._hardware, self._readiness.is_ready, self._readiness.reason
        if not ready and not reason:
            return None
        gpus = tuple(map(self._named, self._gpus() or self._gpus_before()))
        missing = self._missing()
        message = reason or self._journal.failure or missing or "; ".join(hardware.problems)
        if not message and not gpus:
            message = "no NVIDIA GPU was found on this node"
        outcomes = self._outcomes()
        return Inventory(
            node=self._options.node_name,
            pool=self._options.pool,
            driver=self._options.driver_name,
            gpus=gpus,
            allocator=self._mode.allocator or self._options.allocator,
            driver_version=hardware.driver_version,
            cuda_driver_version=hardware.cuda_version,
            cdi_hook=self._cdi_hook(),
            ready=ready and bool(gpus) and not self._journal.failure and not missing,
            message=message,
            publication=self._mode.publication,
            drain=self._drain(),
            resumed=outcomes.resumed,
            failed_claims=outcomes.failed_claims,
            capabilities=outcomes.capabilities,
            answers=outcomes.answers,
            mode=self._node_mode(),
        )

    def _named(self, gpu: Gpu) -> Gpu:
        """The GPU with its name in the remedies of its message."""
        text = at_hand(gpu.unavailable, gpu=gpu.name)
        return gpu if text == gpu.unavailable else replace(gpu, unavailable=text)

    def _gpus_before(self) -> tuple[Gpu, ...]:
        """GPUs as the last run knew them, if this one may not look at them."""
        reason, before = self._unseen(), self._before()
        if not reason or before is None:
            return ()
        why = self._readiness.reason
        return tuple(replace(g, reason=reason, unavailable=why) for g in before.gpus)
