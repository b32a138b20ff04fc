"""Needs of containers that this node cannot meet: found before any slice is cut, reported once."""

from __future__ import annotations

import logging
from collections.abc import Callable

from dra.claims.reasons import NodeReason
from kubeletplugin.claims.prepare.specs import Specs
from kubeletplugin.errors import IncompleteError
from kubeletplugin.gpus.coexistence.other_managers import Conflict
from kubeletplugin.gpus.hardware import Hardware
from kubeletplugin.telemetry.reports import Reports

_log = logging.getLogger(__name__)
_SOURCE = "node needs"


class NodeNeeds:
    """Looks at driver libraries, kernel modules and capability files at each ``look``.

    While something is missing, no GPU of the node is offered; when it is there, all are again.
    ``missing`` says what, with the remedy; ``hook`` is the hook program that containers get, or
    empty. ``sharing`` tells the strategies that can be served. ``on_change`` is called when hook or
    strategies are others, ``on_other_files`` when files of the driver have come, gone or moved, so
    that specs that were written name other ones.
    """

    def __init__(  # noqa: PLR0913 - what is looked at, and whom to tell
        self,
        hardware: Hardware,
        specs: Specs,
        *,
        reports: Reports,
        sharing: Callable[[], tuple[str, ...]],
        on_change: Callable[[], None],
        on_other_files: Callable[[], None] = lambda: None,
    ) -> None:
        self._sharing = sharing
        self._offers: tuple[str, ...] | None = None
        self._on_change = on_change
        self._on_other_files = on_other_files
        self._found: object = None
        self._hardware = hardware
        self._specs = specs
        self._reports = reports
        self.missing = ""
        self.hook = ""

    @property
    def offers(self) -> tuple[str, ...]:
        """Strategies of sharing that can be served, as capabilities of the MigNode."""
        if self._offers is None:
            self._offers = self._sharing()
        return self._offers

    def look(self) -> None:
        """Look, and tell the node, its GPUs and the log when it has become otherwise."""
        self._look_at_files()
        try:
            self._specs.check()
            missing = ""
        except IncompleteError as error:
            missing = str(error)
        if missing == self.missing:
            return
        self.missing = missing
        reason = NodeReason.DRIVER_INCOMPLETE
        self._hardware.set_conflict(Conflict(reason, missing) if missing else None, source=_SOURCE)
        if missing:
            _log.error("no slice can be used on this node: %s", missing)
            self._reports.report_node(reason, missing, warning=True)
        else:
            _log.info("nothing is missing on this node any more")

    def _look_at_files(self) -> None:
        found = self._specs.driver_files()
        if self._found is not None and self._found is not found:
            self._on_other_files()
        self._found = found
        before = (self.hook, self._offers)
        self._offers = self._sharing()
        hook = self._specs.hook()
        if hook != self.hook:
            self.hook = hook
            _log.info("containers get their driver by %s", hook or "mounts alone, without a hook")
        if (hook, self._offers) != before:
            self._on_change()
