"""The allocator of this node's GPUs at the moment: the wanted one may not be possible."""

from __future__ import annotations

import threading
from collections.abc import Callable

from dra.gpu.inventory import AllocatorKind, Publication


class AllocatorMode:
    """The allocator, and the publication of the node's ResourceSlices. Thread-safe.

    Nothing in Kubernetes keeps two allocators from giving the same device away twice, so that the
    order of a change matters: the MigNode says ``scheduler`` before a slice is published, and says
    ``controller`` only after the last one is gone.
    """

    def __init__(self, wanted: AllocatorKind, *, on_change: Callable[[], None]) -> None:
        self.wanted = wanted
        self._on_change = on_change
        self._mutex = threading.Lock()
        self._withdrawn = False
        self._publication: Publication | None = None
        if wanted is AllocatorKind.SCHEDULER:
            self._publication = Publication(done=None, reason="Pending")

    @property
    def allocator(self) -> AllocatorKind | None:
        """Allocator for the MigNode; None while slices of an earlier run may be there."""
        with self._mutex:
            if self._withdrawn:
                return AllocatorKind.CONTROLLER
            return AllocatorKind.SCHEDULER if self.wanted is AllocatorKind.SCHEDULER else None

    @property
    def publication(self) -> Publication | None:
        """State of the slices for the MigNode; None where they are not wanted."""
        with self._mutex:
            return self._publication

    def report(self, publication: Publication) -> None:
        """Records the state of publication; listeners are called if it changed."""
        with self._mutex:
            if publication == self._publication:
                return
            self._publication = publication
        self._on_change()

    def resume(self) -> None:
        """Publish slices after all: from now on the controller allocates no more."""
        with self._mutex:
            self._withdrawn = False
            self._publication = Publication(done=None, reason="Pending")
        self._on_change()

    def withdraw(self) -> None:
        """Let the controller allocate: no slice is there, and none will be before ``resume``."""
        with self._mutex:
            self._withdrawn = True
        self._on_change()
