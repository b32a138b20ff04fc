"""A node that starts, with fakes around what recovery asks and does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dra.gpu.inventory import ClaimRef
from kubeletplugin.claims.lookup import ClaimFate
from kubeletplugin.claims.recovery import Recovery
from kubeletplugin.claims.tasks import ClaimTasks
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
        self.on_finish_of: Callable[[ClaimRef], None] = lambda _: None
        self.finished: list[str] = []
        self.cut_short = False
        self.tasks = ClaimTasks()
        preparer: Any = SimpleNamespace(prepare=self._finish, make_early=self._finish_early)
        outcomes: Any = SimpleNamespace(cut_short=self._note_cut, show=lambda _: None)
        self.recovery = Recovery(
            self.context,
            preparer,
            self.removal,
            self.specs,
            self.tasks,
            outcomes=outcomes,
            fate=self._fate,
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
        self.on_finish_of(ref)
        if self.refusal is not None:
            raise self.refusal
        self.finished.append(ref.name)

    def _finish_early(self, ref: ClaimRef) -> None:
        self.finished.append(f"{ref.name} ahead")
