"""Synchronisation of the generated DeviceClasses: one write at a time, and only of differences.

A class has its ``extendedResourceName`` while kube-scheduler allocates the GPUs of some node, since
only kube-scheduler serves that name. The name is not taken from a class that somebody else made.

A class whose profile no node has is kept for a day, as nodes may come back. It is kept for longer
while a claim, a template or a pod names it, and while it has a quota.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from math import inf

from controller import times
from controller.cluster.records import Effects
from controller.serve.world import World
from controller.write.in_flight import KeptObjects, WriteAnswer, one
from dra.claims.classes import (
    MOST_CLASSES,
    generated_classes,
    holders,
    how_to_make_way,
    is_generated,
    may_carry,
    needs_write,
    offered_profiles,
    resource_of,
    restricted,
)
from dra.claims.reasons import Obstacle, Reason
from dra.common.resources import DEVICE_CLASSES, Obj

_log = logging.getLogger(__name__)

AT_ONCE = 20
"""Upper bound on the classes that one look removes; each look reads all templates once."""


class GeneratedClasses:
    """Compares the classes when profiles or classes have changed, and writes those that differ.

    Owned by the thread that decides.
    """

    def __init__(self, world: World) -> None:
        self._cluster = world.cluster
        self._requests = world.requests
        self._reporter = world.reporter
        self._now = world.now
        self._objects: KeptObjects[str] = KeptObjects("DeviceClass", world.in_flight, world.now)
        self._is_asked = True
        self._lacking: dict[str, Obj] = {}
        self._unused_since: dict[str, float] = {}
        self._next_look = 0.0

    @property
    def due(self) -> float:
        """Monotonic time of the next piece of work; inf if only an answer brings any."""
        if not (self._is_asked or self._unused_since):
            return self._objects.due
        if not self._objects.may_begin:
            return inf
        return self._now() if self._is_asked else min(self._objects.due, self._next_look)

    def note(self, effects: Effects) -> None:
        self._is_asked = self._is_asked or effects.classes

    def work(self) -> None:
        name = self._objects.next()
        if name is None and self._is_asked:  # also by our own writes: once for all of them
            self._is_asked = False
            self._compare()
            name = self._objects.next()
        if name is not None:
            self._write(name, self._lacking[name])
        elif self._unused_since and self._now() >= self._next_look:
            self._look(self._now())

    def _compare(self) -> None:
        """Find the classes that are to be written, and those whose profile no node has."""
        cluster, now = self._cluster, self._now()
        present = {n for n, o in cluster.class_objects.items() if is_generated(o, cluster.driver)}
        profiles = offered_profiles(cluster.fleet.profiles_by_node(), present)
        todays = generated_classes(cluster.driver, profiles)
        names = {each["metadata"]["name"] for each in todays}
        self._unused_since = {
            name: self._unused_since.get(name, now)
            for name in sorted(present - names)
            if cluster.classes[name].quota is None  # a class made anew would have none
        }
        room = MOST_CLASSES - len(present)
        before, self._lacking = self._lacking, {}
        for wanted in self._restricted(todays, names):
            name = wanted["metadata"]["name"]
            found = cluster.class_objects.get(name)
            if found is None:
                room -= 1
                if room < 0:
                    # Classes are compared again once an unused one has been removed.
                    soon = max(now, self._next_look - times.UNUSED_LOOK + times.UNUSED_WHERE_FULL)
                    self._next_look = min(self._next_look, soon)
                    continue
            elif not is_generated(found, cluster.driver):
                self._tell_conflict(found)
                continue
            elif not needs_write(wanted, found, cluster.driver):
                continue
            self._lacking[name] = wanted
            self._objects.add(name)
        for name in before.keys() - self._lacking.keys():
            self._objects.discard(name)

    def _restricted(self, todays: list[Obj], names: set[str]) -> Iterator[Obj]:
        """The classes of present profiles, and former classes that have an extended resource.

        Each has its extended resource taken out if it may not carry it.
        """
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

    def _tell_conflict(self, found: Obj) -> None:
        name = found["metadata"]["name"]
        message = (
            f"DeviceClass {name!r} exists and was not generated by this driver: it is left as it "
            f"is; {how_to_make_way(found)}"
        )
        obstacle = Obstacle(Reason.CLASS_CONFLICT, message)
        self._reporter.on_class(found, "DeviceClass left alone", obstacle)

    def _tell(self, name: str, resource: str, taker: str, *, carries: bool) -> None:
        """Tell on a class of ours that another class has its extended resource, or has it no more.

        ``taker``: name of the other class; empty if there is none.
        ``carries``: our class keeps the name, since kube-scheduler would forget it otherwise.
        """
        found = self._cluster.class_objects.get(name)
        if found is None or not is_generated(found, self._cluster.driver):
            return
        if not taker:
            if self._reporter.class_is_right(found, Reason.EXTENDED_RESOURCE_TAKEN):
                _log.info("extended resource is free again", extra={"class": name})
            return
        stays = (
            "ours is older and out of use, and keeps the name, as kube-scheduler would forget it "
            "otherwise"
            if carries
            else "ours goes without. If pods wait for it as insufficient, change anything of that "
            f"class (kubectl annotate deviceclass {taker} seen=again): kube-scheduler forgets a "
            "name that another class has given up"
        )
        message = (
            f"extendedResourceName {resource!r} of DeviceClass {name!r} is served by DeviceClass "
            f"{taker!r}, which this driver did not make: {stays}; delete that class or its field "
            "if this driver is to serve the pods that ask for it by limits"
        )
        obstacle = Obstacle(Reason.EXTENDED_RESOURCE_TAKEN, message)
        self._reporter.on_class(found, "extended resource taken", obstacle)

    def _write(self, name: str, wanted: Obj) -> None:
        driver, found = self._cluster.driver, self._cluster.class_objects.get(name)
        if found is not None and not (
            is_generated(found, driver) and needs_write(wanted, found, driver)
        ):
            return  # it has changed since the comparison; the next one sees to it
        job = one(self._requests.apply, DEVICE_CLASSES, wanted)
        self._objects.write(name, job, self._cluster.set_class)

    def _look(self, now: float) -> None:
        """Begin to remove classes that were unused for long.

        The youngest is removed first. If there are as many classes as there may be, a class is
        removed after a minute without use.
        """
        self._next_look = now + times.UNUSED_LOOK
        objects = self._cluster.class_objects
        present = sum(is_generated(each, self._cluster.driver) for each in objects.values())
        is_full = present >= MOST_CLASSES
        patience = times.UNUSED_WHERE_FULL if is_full else times.UNUSED_CLASS
        if is_full:
            self._next_look = now + times.UNUSED_WHERE_FULL
        old = [name for name, since in self._unused_since.items() if now - since >= patience]
        named = self._named() if old else frozenset()
        old = sorted(
            (name for name in old if name not in named),
            key=lambda name: str(objects[name]["metadata"].get("creationTimestamp") or ""),
            reverse=True,
        )
        if old:
            self._remove({name: str(objects[name]["metadata"]["uid"]) for name in old})

    def _named(self) -> frozenset[str]:
        """Names of classes that claims name, or whose extended resource a pod asks for."""
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
        def job() -> Iterator[Obj]:
            named = self._requests.classes_in_templates()
            for name in [each for each in uids if each not in named][:AT_ONCE]:
                self._requests.remove(DEVICE_CLASSES, ("", name), uid=uids[name])
                yield {"metadata": {"name": name}}

        self._objects.begin(job, self._removed)

    def _removed(self, answer: WriteAnswer) -> None:
        for each in answer.written:
            name = each["metadata"]["name"]
            self._cluster.remove_class(name)
            _log.info("DeviceClass removed: no node offers it", extra={"class": name})
        if answer.error is not None:
            _log.warning("DeviceClasses not removed", extra={"error": str(answer.error)})
