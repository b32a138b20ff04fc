"""A node that starts, with fakes around what recovery asks and does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dra.gpu.inventory import ClaimRef
from kubeletplugin.claims.claim_tasks import ClaimTasks
from kubeletplugin.claims.ending.claim_fate import ClaimFate
from kubeletplugin.claims.recovery.lost_slices import LostSlices
from kubeletplugin.claims.recovery.recovery import Recovery
from kubeletplugin.errors import PluginError
from tests.kubeletplugin.helpers.nodebench import NodeBench

UID = "uid-a"


class Bench(NodeBench):
    """A node that starts; ``fate`` is that of all claims, ``refusal`` what finishing one raises."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.fate = ClaimFate.HERE
        self.refusal: PluginError | None = None
        self.on_finish: Callable[[], object] = lambda: None
        self.finished: list[str] = []
        self.cut_short = False
        lost = LostSlices(
            self.hardware,
            self.journal,
            self.specs,
            fate=self._fate,
            finish=self._finish,
            reports=self.reports,
            observer=self.acts,
        )
        self.lost = lost
        self.tasks = ClaimTasks()
        self.recovery = Recovery(
            self.journal,
            self.specs,
            self.rollback,
            lost,
            self.tasks,
            fate=self._fate,
            finish=self._finish,
            cut_short=self._note_cut,
            finish_ahead=self._finish_ahead,
            observer=self.acts,
        )

    def _note_cut(self) -> None:
        self.cut_short = True

    def settled(self) -> None:
        """Nothing is missing from the journal."""
        self.journal.rebuilt()

    def _fate(self, ref: ClaimRef) -> ClaimFate:
        assert ref.name in {"a", "b"}
        return self.fate

    def _finish(self, ref: ClaimRef) -> None:
        self.on_finish()
        if self.refusal is not None:
            raise self.refusal
        self.finished.append(ref.name)

    def _finish_ahead(self, ref: ClaimRef) -> None:
        self.finished.append(f"{ref.name} ahead")
