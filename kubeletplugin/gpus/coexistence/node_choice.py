"""Choice of what becomes of this node's GPUs, by labels of its Node and the class they name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dra.gpu.layouts import Choice, choose
from kubeletplugin.host.class_files import ClassFiles

UNKNOWN = Choice("", problem="the labels of the Node are not known yet", passing=True)


class NodeChoice:
    """The choice of now. ``files`` is None where no class of nodes is configured.

    ``see`` may be called by any thread, ``current`` by one; ``on_change`` hears of other labels.
    """

    def __init__(
        self, files: ClassFiles | None, *, driver: str, on_change: Callable[[], None]
    ) -> None:
        self._files = files
        self._driver = driver
        self._on_change = on_change
        self._labels: Mapping[str, str] | None = None

    @property
    def configured(self) -> bool:
        """True if this program decides what becomes of GPUs, as mig-manager would."""
        return self._files is not None

    def see(self, node: Mapping[str, Any]) -> None:
        """Take note of this node's Node (core/v1, as JSON) as it is now."""
        labels = dict((node.get("metadata") or {}).get("labels") or {})
        if labels != self._labels:
            self._labels = labels
            if self._files is not None:
                self._on_change()

    def current(self) -> Choice | None:
        """The choice; None where no class of nodes is configured."""
        if self._files is None:
            return None
        labels = self._labels
        if labels is None:
            return UNKNOWN
        return choose(labels, self._files.read(), driver=self._driver)
