"""Synchronisation of the generated DeviceClasses: one write at a time, and only of differences.

A class carries its extended resource while kube-scheduler allocates some node, as nobody else
serves it, and takes it from no class of somebody else. A class whose profile no node has stays for
a day, as nodes come back, and for as long as a claim, a template or a pod names it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from controller.cluster.cluster import Cluster
from controller.reporting.report import Reporter
from controller.writing.in_flight import InFlight, WriteAnswer
from controller.writing.leader_requests import NotLeadingError
from controller.writing.object_writer import ObjectWriter
from dra.claims.classes import (
    MOST_CLASSES,
    generated_classes,
    holders,
    is_generated,
    may_carry,
    needs_write,
    offered_profiles,
    resource_of,
    restricted,
)
from dra.common.resources import Obj
from dra.kube.timing import Backoff

_log = logging.getLogger(__name__)

_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 60.0

LOOK_SECONDS = 600.0
KEEP_SECONDS = 86400.0
KEEP_WHERE_FULL_SECONDS = 60.0
"""Time for which an unused class stays where others wait for its room, and between two looks."""
AT_ONCE = 20
"""Classes that one look removes; it reads all templates once."""


@dataclass(slots=True)
class _Refused:
    """A class that could not be written, and when it is tried again."""

    not_before: float = 0.0
    backoff: Backoff = field(
        default_factory=lambda: Backoff(first=_FIRST_PAUSE, limit=_LONGEST_PAUSE, jitter=0)
    )


class ClassSync:
    """Compares when asked to, and writes what differs. For the deciding thread."""

    def __init__(
        self,
        cluster: Cluster,
        writer: ObjectWriter,
        in_flight: InFlight,
        reporter: Reporter,
        *,
        now: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._writer = writer
        self._in_flight = in_flight
        self._reporter = reporter
        self._now = now
        self._is_asked = True
        self._is_writing = False
        self._lacking: dict[str, Obj] = {}
        self._refused: dict[str, _Refused] = {}
        self._unused_since: dict[str, float] = {}
        self._next_look = 0.0

    @property
    def due(self) -> float | None:
        """Monotonic time of the next piece of work; None where there is none before an answer."""
        if self._is_writing or self._in_flight.full:
            return None
        if self._is_asked:
            return self._now()
        times = [self._not_before(name) for name in self._lacking]
        times += [self._next_look] if self._unused_since else []
        return min(times, default=None)

    def request(self) -> None:
        """Ask for a comparison, as profiles or classes have changed."""
        self._is_asked = True

    def work_if_due(self) -> bool:
        """Begin to write or to remove; False when nothing is due."""
        if self._is_writing or self._in_flight.full:
            return False
        if self._is_asked:
            self._is_asked = False
            self._compare()
        now = self._now()
        for name, wanted in self._lacking.items():
            if self._not_before(name) <= now:
                del self._lacking[name]
                self._write(name, wanted)
                return True
        return bool(self._unused_since) and now >= self._next_look and self._look(now)

    def _not_before(self, name: str) -> float:
        refused = self._refused.get(name)
        return refused.not_before if refused is not None else 0.0

    def _compare(self) -> None:
        """Find out which classes are to be written, and which nothing needs."""
        cluster, now = self._cluster, self._now()
        present = {n for n, o in cluster.class_objects.items() if is_generated(o, cluster.driver)}
        profiles = offered_profiles(cluster.fleet.profiles_by_node(), present)
        todays = generated_classes(cluster.driver, profiles)
        names = {each["metadata"]["name"] for each in todays}
        self._unused_since = {
            name: self._unused_since.get(name, now) for name in sorted(present - names)
        }
        room = MOST_CLASSES - len(present)
        self._lacking = {}
        for wanted in self._restricted(todays, names):
            name = wanted["metadata"]["name"]
            found = cluster.class_objects.get(name)
            if found is None:
                room -= 1
                if room < 0:
                    # It is compared again once one of those is gone that nothing needs.
                    soon = max(now, self._next_look - LOOK_SECONDS + KEEP_WHERE_FULL_SECONDS)
                    self._next_look = min(self._next_look, soon)
                    continue
            elif not is_generated(found, cluster.driver):
                self._reporter.class_conflict(found)
                continue
            elif not needs_write(wanted, found, cluster.driver):
                continue
            self._lacking[name] = wanted
        self._refused = {n: each for n, each in self._refused.items() if n in self._lacking}

    def _restricted(self, todays: list[Obj], names: set[str]) -> Iterator[Obj]:
        """The classes of today's profiles, and former ones that have an extended resource."""
        cluster = self._cluster
        served = bool(cluster.fleet.schedulers)
        taken = holders(cluster.class_objects.values(), cluster.driver)
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

    def _write(self, name: str, wanted: Obj) -> None:
        def job() -> Iterator[Obj]:
            yield self._writer.apply_class(wanted)

        self._is_writing = True
        self._in_flight.start((), job, lambda answer: self._written(name, wanted, answer))

    def _written(self, name: str, wanted: Obj, answer: WriteAnswer) -> None:
        self._is_writing = False
        match answer.error:
            case None:
                self._refused.pop(name, None)
                self._cluster.set_class(answer.written[0])
                _log.info("DeviceClass written", extra={"class": name})
            case NotLeadingError():
                raise answer.error
            case _:
                # One that is refused, by a policy maybe, keeps no other away.
                refused = self._refused.setdefault(name, _Refused())
                pause = refused.backoff.next_delay()
                refused.not_before = self._now() + pause
                self._lacking[name] = wanted
                fields = {"class": name, "pause": pause, "error": str(answer.error)}
                _log.warning("DeviceClass not written; trying again", extra=fields)

    def _look(self, now: float) -> bool:
        """Begin to remove classes that nothing has needed for long; False where there are none.

        Where they take the room of others the youngest goes first, and a minute is enough.
        """
        self._next_look = now + LOOK_SECONDS
        objects = self._cluster.class_objects
        present = sum(is_generated(each, self._cluster.driver) for each in objects.values())
        is_full = present >= MOST_CLASSES
        patience = KEEP_WHERE_FULL_SECONDS if is_full else KEEP_SECONDS
        if is_full:
            self._next_look = now + KEEP_WHERE_FULL_SECONDS
        old = [name for name, since in self._unused_since.items() if now - since >= patience]
        named = self._named() if old else frozenset()
        old = sorted(
            (name for name in old if name not in named),
            key=lambda name: str(objects[name]["metadata"].get("creationTimestamp") or ""),
            reverse=True,
        )
        if old:
            self._remove({name: str(objects[name]["metadata"]["uid"]) for name in old})
        return bool(old)

    def _named(self) -> frozenset[str]:
        """Classes that claims name, and those whose extended resource a pod asks for."""
        cluster = self._cluster
        found = {
            choice.class_name
            for known in cluster.claims.values()
            for request in known.claim.requests
            for choice in request.choices
        }
        carried = {c.extended_resource: c.name for c in cluster.classes.values()}
        for pod in cluster.pods.values():
            found.update(carried[r] for r in pod.needs.requests if r in carried)
        return frozenset(found)

    def _remove(self, uids: dict[str, str]) -> None:
        """Begin to remove some of these, but for those that templates name."""

        def job() -> Iterator[Obj]:
            named = self._writer.classes_in_templates()
            for name in [each for each in uids if each not in named][:AT_ONCE]:
                self._writer.remove_class(name, uid=uids[name])
                yield {"metadata": {"name": name}}

        self._is_writing = True
        self._in_flight.start((), job, self._removed)

    def _removed(self, answer: WriteAnswer) -> None:
        self._is_writing = False
        for each in answer.written:
            name = each["metadata"]["name"]
            self._cluster.remove_class(name)
            _log.info("DeviceClass removed: no node offers it", extra={"class": name})
        if isinstance(answer.error, NotLeadingError):
            raise answer.error
        if answer.error is not None:
            _log.warning("DeviceClasses not removed", extra={"error": str(answer.error)})
