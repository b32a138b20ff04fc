"""A node that starts and is looked after, with fakes around what the janitor asks and does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dra.gpu.inventory import ClaimRef
from kubeletplugin.claims.janitor import Janitor
from kubeletplugin.claims.lookup import ClaimFate
from kubeletplugin.claims.node import ClaimTasks
from kubeletplugin.errors import PluginError
from tests.kubeletplugin.helpers.nodebench import NodeBench

UID = "uid-a"


class Bench(NodeBench):
    """A node; ``fate`` is that of all claims, ``refusal`` what finishing one raises."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.fate = ClaimFate.HERE
        self.refusal: PluginError | None = None
        self.on_finish: Callable[[ClaimRef], object] = lambda _: None
        self.finished: list[str] = []
        self.cut_short = False
        self.tasks = ClaimTasks(clock=self.clock.monotonic)
        node: Any = SimpleNamespace(
            preparer=SimpleNamespace(prepare=self._finish, make_early=self._finish_early),
            removal=self.removal,
            tasks=self.tasks,
            unprepared=set(),
            outcomes=SimpleNamespace(
                cut_short=self._note_cut, statuses=SimpleNamespace(show=lambda _: None)
            ),
            rebuild=SimpleNamespace(run=lambda: not self.journal.rebuild),
        )
        early: Any = SimpleNamespace(
            reader=SimpleNamespace(fate=self._fate), doubt=self.doubted.append
        )
        takeover: Any = SimpleNamespace(tend=lambda **_: None)
        self.janitor = Janitor(
            self.common,
            node,
            early,
            self.specs,
            self.sharing,
            takeover=takeover,
            forgotten_seconds=60.0,
        )

    def settled(self) -> None:
        """Nothing is missing from the journal."""
        self.journal.rebuilt()

    def _note_cut(self) -> None:
        self.cut_short = True

    def _fate(self, ref: ClaimRef) -> ClaimFate:
        assert ref.name in {"a", "b"}
        return self.fate

    def _finish(self, ref: ClaimRef) -> None:
        self.on_finish(ref)
        if self.refusal is not None:
            raise self.refusal
        self.finished.append(ref.name)

    def _finish_early(self, ref: ClaimRef) -> None:
        self.finished.append(f"{ref.name} early")
