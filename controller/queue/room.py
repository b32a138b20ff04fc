"""Room that was made lately: the nodes where something may fit now that did not fit before."""

from __future__ import annotations

from collections.abc import Iterable


class Room:
    """Nodes in the order in which they made room last. Not thread-safe."""

    def __init__(self) -> None:
        self.version = 0
        """Grows whenever room is made."""
        self._nodes: dict[str, int] = {}
        self._anywhere = 0

    def make(self, nodes: Iterable[str], *, anywhere: bool = False) -> None:
        """Room was made on ``nodes``; ``anywhere``: for a reason that no node tells."""
        self.version += 1
        if anywhere:
            self._anywhere = self.version
            self._nodes.clear()
            return
        for node in nodes:
            self._nodes.pop(node, None)
            self._nodes[node] = self.version

    def since(self, version: int) -> list[str] | None:
        """The nodes that have made room after ``version``, None when it may be any."""
        if version < self._anywhere:
            return None
        found: list[str] = []
        for node, made in reversed(self._nodes.items()):
            if made <= version:
                break
            found.append(node)
        return found
