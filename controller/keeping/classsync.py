"""Synchronisation of the generated DeviceClasses, which writes only differences.

None is ever deleted: claims and templates refer to them, and nodes come back. A class carries its
extended resource while kube-scheduler allocates some node, as nobody else serves it, and takes it
from no class of somebody else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from controller.cluster.cluster import Cluster
from controller.reporting.report import Reporter
from controller.writing.object_writer import ObjectWriter
from dra.claims.classes import generated_classes, is_generated, needs_write, restricted
from dra.claims.extendedresources import holders, may_carry, resource_of
from dra.common.resources import Obj
from dra.kube.errors import ForbiddenError, InvalidError, KubeError
from dra.kube.timing import Backoff

_log = logging.getLogger(__name__)

_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 60.0


class ClassSync:
    """Compares when asked to, and again after a pause when a write failed."""

    def __init__(
        self, cluster: Cluster, writer: ObjectWriter, reporter: Reporter, now: Callable[[], float]
    ) -> None:
        self._cluster = cluster
        self._writer = writer
        self._reporter = reporter
        self._now = now
        self._backoff = Backoff(first=_FIRST_PAUSE, limit=_LONGEST_PAUSE, jitter=0)
        self.due: float | None = now()

    def request(self) -> None:
        """Ask for a sync, as profiles or classes have changed; a pause after a failure goes on."""
        if not self._backoff.failures:
            self.due = self._now()

    def sync_if_due(self) -> bool:
        """Compare and write; False when that is not due."""
        if self.due is None or self.due > self._now():
            return False
        self.due = None
        try:
            self._sync()
        except KubeError as error:
            pause = self._backoff.next_delay()
            self.due = self._now() + pause
            fields = {"pause": pause, "error": str(error)}
            _log.warning("DeviceClasses not written; trying again", extra=fields)
        else:
            self._backoff.reset()
        return True

    def _sync(self) -> None:
        """Write what differs. One class that is refused, by a policy maybe, keeps no other away."""
        refusal: KubeError | None = None
        for wanted in self._wanted():
            try:
                self._keep(wanted)
            except (InvalidError, ForbiddenError) as error:
                fields = {"class": wanted["metadata"]["name"], "error": str(error)}
                _log.warning("DeviceClass refused", extra=fields)
                refusal = error
        if refusal is not None:
            raise refusal

    def _wanted(self) -> Iterator[Obj]:
        """The classes of today's profiles, and former ones that have an extended resource."""
        cluster = self._cluster
        served = bool(cluster.fleet.schedulers)
        taken = holders(cluster.class_objects.values(), cluster.driver)
        todays = generated_classes(cluster.driver, cluster.fleet.profiles())
        names = {each["metadata"]["name"] for each in todays}
        former = [
            found
            for name, found in cluster.class_objects.items()
            if name not in names and is_generated(found, cluster.driver) and resource_of(found)
        ]
        for each in [*todays, *former]:
            resource, own = resource_of(each), cluster.class_objects.get(each["metadata"]["name"])
            holder = taken.get(resource)
            if not resource:
                yield each
                continue
            carries = may_carry(resource, own, holder, served=served)
            by = str(holder["metadata"]["name"]) if holder is not None and served else ""
            yield restricted(each, cluster.driver, carries=carries, taken_by=by)
            self._tell(each["metadata"]["name"], resource, by, carries=carries)

    def _tell(self, name: str, resource: str, taker: str, *, carries: bool) -> None:
        """Say of a class of ours that its extended resource is another's, or no longer."""
        found = self._cluster.class_objects.get(name)
        if found is not None and is_generated(found, self._cluster.driver):
            self._reporter.extended_resource(found, resource, taker, carries=carries)

    def _keep(self, wanted: Obj) -> None:
        cluster, name = self._cluster, wanted["metadata"]["name"]
        found = cluster.class_objects.get(name)
        if found is not None and not is_generated(found, cluster.driver):
            self._reporter.class_conflict(found)
        elif found is None or needs_write(wanted, found, cluster.driver):
            cluster.set_class(self._writer.apply_class(wanted))
            _log.info("DeviceClass written", extra={"class": name})
