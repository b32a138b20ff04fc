"""Keeps the generated DeviceClasses as they should be, and writes only what differs.

None is ever deleted: claims and templates refer to them, and nodes come back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from controller.cluster import Cluster
from controller.report import Reporter
from controller.writer import Writer
from dra.classes import generated_classes, is_generated, needs_write
from dra.kube.errors import ForbiddenError, InvalidError, KubeError
from dra.kube.resources import Obj

_log = logging.getLogger(__name__)

_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 60.0


class ClassSync:
    """Compares when asked to, and again after a pause when a write failed."""

    def __init__(
        self, cluster: Cluster, writer: Writer, reporter: Reporter, now: Callable[[], float]
    ) -> None:
        self._cluster = cluster
        self._writer = writer
        self._reporter = reporter
        self._now = now
        self._failures = 0
        self.due: float | None = now()

    def request(self) -> None:
        """Profiles or classes have changed. A pause after a failure goes on."""
        if not self._failures:
            self.due = self._now()

    def sync_if_due(self) -> bool:
        """Compare and write; False when that is not due."""
        if self.due is None or self.due > self._now():
            return False
        self.due = None
        try:
            self._sync()
        except KubeError as error:
            pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(self._failures, 10))
            self._failures += 1
            self.due = self._now() + pause
            fields = {"pause": pause, "error": str(error)}
            _log.warning("DeviceClasses not written; trying again", extra=fields)
        else:
            self._failures = 0
        return True

    def _sync(self) -> None:
        """Write what differs. One class that is refused, by a policy maybe, keeps no other away."""
        refusal: KubeError | None = None
        for wanted in generated_classes(self._cluster.driver, self._cluster.fleet.profiles()):
            try:
                self._keep(wanted)
            except (InvalidError, ForbiddenError) as error:
                fields = {"class": wanted["metadata"]["name"], "error": str(error)}
                _log.warning("DeviceClass refused", extra=fields)
                refusal = error
        if refusal is not None:
            raise refusal

    def _keep(self, wanted: Obj) -> None:
        cluster, name = self._cluster, wanted["metadata"]["name"]
        found = cluster.class_objects.get(name)
        if found is not None and not is_generated(found, cluster.driver):
            self._reporter.class_conflict(found)
        elif found is None or needs_write(wanted, found):
            cluster.set_class(self._writer.apply_class(wanted))
            _log.info("DeviceClass written", extra={"class": name})
