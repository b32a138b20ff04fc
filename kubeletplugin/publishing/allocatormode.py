"""The allocator of this node's GPUs at the moment: the wanted one may not be possible."""

from __future__ import annotations

import threading
from collections.abc import Callable

from dra.gpu.inventory import Allocator, Publication


class AllocatorMode:
    """The allocator, and how it stands with the node's ResourceSlices. Thread-safe.

    Nothing in Kubernetes keeps two allocators from giving the same device away twice, so that the
    order of a change matters: the MigNode says ``scheduler`` before a slice is published, and says
    ``controller`` only after the last one is gone.
    """

    def __init__(self, wanted: Allocator, *, on_change: Callable[[], None]) -> None:
        self.wanted = wanted
        self._on_change = on_change
        self._mutex = threading.Lock()
        self._withdrawn = False
        self._publication: Publication | None = None
        if wanted is Allocator.SCHEDULER:
            self._publication = Publication(done=None, reason="Pending")

    @property
    def allocator(self) -> Allocator | None:
        """What the MigNode is to say; None while slices of an earlier run may be there."""
        with self._mutex:
            if self._withdrawn:
                return Allocator.CONTROLLER
            return Allocator.SCHEDULER if self.wanted is Allocator.SCHEDULER else None

    @property
    def publication(self) -> Publication | None:
        """What the MigNode says of the slices; None where they are not wanted."""
        with self._mutex:
            return self._publication

    def report(self, publication: Publication) -> None:
        """It stands otherwise with the slices now, perhaps."""
        with self._mutex:
            if publication == self._publication:
                return
            self._publication = publication
        self._on_change()

    def resume(self) -> None:
        """Slices are to be published after all: the controller is to allocate no more."""
        with self._mutex:
            self._withdrawn = False
            self._publication = Publication(done=None, reason="Pending")
        self._on_change()

    def withdraw(self) -> None:
        """No slice is there, and none will be before ``resume``: the controller may allocate."""
        with self._mutex:
            self._withdrawn = True
        self._on_change()
