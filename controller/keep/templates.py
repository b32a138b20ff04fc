"""ResourceClaimTemplates for pods' limits, kept in namespaces that opted in.

Such a namespace has one template for each profile of the nodes, and one for each other amount that
a living pod names, up to ``MOST``. A template never needs an update, as its name says what it asks
for. An unused template may be removed at any time: if a pod names it in the meantime, the pod waits
and the template is made again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import islice
from math import inf

from controller import times
from controller.cluster.records import Effects
from controller.serve.world import World
from controller.write.in_flight import KeptObjects, WriteAnswer, one
from dra.claims.classes import offered_profiles
from dra.claims.reasons import Obstacle, Reason
from dra.common.resources import RESOURCE_CLAIM_TEMPLATES, Obj, ObjectKey
from dra.kube.errors import ForbiddenError, InvalidError
from dra.limits.rewriting import is_template_name, template, template_name
from dra.pods.pods import Pod

_log = logging.getLogger(__name__)

MOST = 64
"""Templates of one namespace besides those of the profiles that nodes have."""

AT_ONCE = 20
"""Upper bound on the unused templates that one look removes."""


_QUOTA = "exceeded quota"
"""Words of the API server's admission plugin ResourceQuota."""


class LimitTemplates:
    """Writes one template at a time; namespaces take turns. Not thread-safe."""

    def __init__(self, world: World) -> None:
        self._cluster = world.cluster
        self._templates = world.cluster.templates
        self._requests = world.requests
        self._reporter = world.reporter
        self._now = world.now
        self._objects: KeptObjects[ObjectKey] = KeptObjects(
            "ResourceClaimTemplate", world.in_flight, world.now, group=lambda key: key[0]
        )
        self._held: dict[str, dict[ObjectKey, None]] = {}
        """By namespace, templates that wait for room there; the first of each is looked at."""
        self._lasting: frozenset[str] = frozenset()
        """Names of the templates for profiles that nodes have; these are not removed."""
        self._unused_since: dict[ObjectKey, float] = {}
        self._given_up: list[ObjectKey] = []
        self._next_look = world.now() + times.UNUSED_LOOK

    @property
    def due(self) -> float:
        if not (self._given_up or self._templates.present):
            return self._objects.due
        if not self._objects.may_begin:
            return inf
        return self._now() if self._given_up else min(self._objects.due, self._next_look)

    def note(self, effects: Effects) -> None:
        known = self._templates
        if effects.classes:
            profiles = offered_profiles(
                self._cluster.fleet.profiles_by_node(), self._cluster.class_objects.keys()
            )
            self._lasting = frozenset(filter(is_template_name, map(template_name, profiles)))
        for key in effects.templates:
            self._note_template(key)
        if not known.namespaces:
            return
        for pod_key in effects.pods:
            if (pod := self._cluster.pods.get(pod_key)) is not None:
                for awaited in known.awaited(pod):
                    self._want(awaited, (pod,))
        for namespace in known.namespaces if effects.classes else effects.opted_in:
            self._note_room(namespace)
            for name in {*self._lasting, *known.named_in(namespace)}:
                self._want_missing((namespace, name))

    def work(self) -> None:
        key = self._objects.next()
        if key is None:
            self._remove_unused()
            return
        namespace, name = key
        if not self._templates.lacks(key) or not self._is_needed(key):
            self._objects.discard(key)
            self._end_hold(key)
        elif name in self._lasting or not self._is_full(namespace):
            self._end_hold(key)
            self._write(key)
        else:
            self._make_room(key)

    # -- what is lacking

    def _note_template(self, key: ObjectKey) -> None:
        """Take note that a template is gone, or that no living pod names it any more."""
        self._unused_since.pop(key, None)
        if self._is_unused(key):
            self._unused_since[key] = self._now()
        if not self._is_needed(key):
            self._held.get(key[0], {}).pop(key, None)
        self._note_room(key[0])
        self._want_missing(key)

    def _want_missing(self, key: ObjectKey) -> None:
        """Have a missing template made if it is for a nodes' profile or a pod waits for it."""
        if self._templates.lacks(key):
            if key[1] in self._lasting:
                self._objects.add(key, 1)
            else:
                self._want(key, self._waiting_for(key))

    def _want(self, key: ObjectKey, pods: tuple[Pod, ...]) -> None:
        """Have a template made for ``pods``, which wait for it, once there is room for it."""
        if key in self._held.get(key[0], ()):
            self._tell(key[1], pods)
        elif pods:
            self._objects.add(key)

    def _waiting_for(self, key: ObjectKey) -> tuple[Pod, ...]:
        pods = (self._cluster.pods[user] for user in self._templates.users(key))
        return tuple(pod for pod in pods if self._templates.awaits(pod, key[1]))

    def _is_needed(self, key: ObjectKey) -> bool:
        return key[1] in self._lasting or bool(self._templates.users(key))

    # -- room in a namespace

    def _note_room(self, namespace: str) -> None:
        for key in islice(self._held.get(namespace, ()), 1):
            self._objects.add(key)

    def _end_hold(self, key: ObjectKey) -> None:
        held = self._held.get(key[0], {})
        held.pop(key, None)
        self._note_room(key[0])
        if not held:
            self._held.pop(key[0], None)

    def _make_room(self, key: ObjectKey) -> None:
        """Make room for the template ``key``: remove the one that was unused for longest.

        If none was unused for long enough, ``key`` is held until there is room, and the pods that
        wait for it are told.
        """
        namespace, name = key
        now, first = self._now(), next(iter(self._held.get(namespace, ())), key)
        keys = [(namespace, each) for each in self._templates.names(namespace)]
        unused = [(self._unused_since.setdefault(k, now), k) for k in keys if self._is_unused(k)]
        since, oldest = min(unused, default=(inf, key))
        room_at = since + times.UNUSED_WHERE_FULL
        if key == first and room_at <= now:
            self._remove(oldest)
            self._objects.add(key, -1)
            return
        held = self._held.setdefault(namespace, {})
        if key not in held:
            held[key] = None
            self._tell(name, self._waiting_for(key))
        if key == first and room_at < inf:
            self._objects.add(key, at=room_at)

    def _tell(self, name: str, pods: tuple[Pod, ...]) -> None:
        for pod in pods:
            namespace = pod.key[0]
            self._say(
                pod,
                Reason.TOO_MANY_TEMPLATES,
                f"ResourceClaimTemplate {name!r}, which spec.resourceClaims names for the pod's "
                f"limits, is not made: namespace {namespace} has {MOST} such templates, the most "
                "that one may have, and pods name them (kubectl get resourceclaimtemplates -n "
                f"{namespace}); state an amount that other pods of the namespace state (round "
                "nvidia.com/gpumem up), or end pods that state other amounts: it is made a minute "
                "after the last one has ended",
            )

    def _tell_refusal(self, key: ObjectKey, error: Exception) -> None:
        """Tell pods that wait for a template what the API server says of it."""
        by_quota = _QUOTA in str(error)
        remedy = "let its quota allow more of them" if by_quota else "it is tried again"
        for pod in self._waiting_for(key):
            self._say(
                pod,
                Reason.TOO_MANY_TEMPLATES if by_quota else Reason.REFUSED,
                f"ResourceClaimTemplate {key[1]!r}, which spec.resourceClaims names for the pod's "
                f"limits, is not made in namespace {key[0]}: {error}; {remedy}",
            )

    def _say(self, pod: Pod, reason: Reason, message: str) -> None:
        self._reporter.on_pod(pod, "pod has no claim", Obstacle(reason, message), warns=False)

    def _is_full(self, namespace: str) -> bool:
        return sum(name not in self._lasting for name in self._templates.names(namespace)) >= MOST

    # -- writing and removing

    def _write(self, key: ObjectKey) -> None:
        body = template(key[1], key[0], driver=self._cluster.driver)

        def done(answer: WriteAnswer) -> None:
            fields: Obj = {"template": "/".join(key)}
            if answer.error is None:
                self._templates.set(answer.written[0])
                _log.info("ResourceClaimTemplate written", extra=fields)
            elif isinstance(answer.error, InvalidError):
                _log.warning(
                    "a ResourceClaimTemplate of somebody else has the name of one of ours: pods "
                    "get what that asks for",
                    extra={**fields, "error": str(answer.error)},
                )
            else:  # also where the namespace is being deleted, until it is gone
                self._objects.refused(key, answer.error)
                if isinstance(answer.error, ForbiddenError):
                    self._tell_refusal(key, answer.error)
                return
            self._objects.discard(key)

        self._objects.begin(one(self._requests.apply, RESOURCE_CLAIM_TEMPLATES, body), done)

    def _is_unused(self, key: ObjectKey) -> bool:
        known = self._templates
        return key in known.present and key[1] not in self._lasting and not known.users(key)

    def _remove_unused(self) -> None:
        """Begin to remove a template that was unused for long, if there is one."""
        now = self._now()
        if not self._given_up and now >= self._next_look:
            self._next_look = now + times.UNUSED_LOOK
            unused = filter(self._is_unused, self._templates.present)
            self._unused_since = {key: self._unused_since.get(key, now) for key in unused}
            since = now - times.UNUSED_TEMPLATE
            old = [key for key, at in self._unused_since.items() if at <= since]
            self._given_up = old[:AT_ONCE]
        while self._given_up:
            key = self._given_up.pop()
            if self._is_unused(key):
                self._remove(key)
                return

    def _remove(self, key: ObjectKey) -> None:
        uid = self._templates.present[key]

        def job() -> Iterator[Obj]:
            self._requests.remove(RESOURCE_CLAIM_TEMPLATES, key, uid=uid)
            yield {}

        def done(answer: WriteAnswer) -> None:
            fields = {"template": "/".join(key)}
            if answer.error is None:
                self._templates.remove(key)
                _log.info("ResourceClaimTemplate removed: no pod named it for long", extra=fields)
            else:
                self._unused_since[key] = self._now()
                fields["error"] = str(answer.error)
                _log.warning("ResourceClaimTemplate not removed", extra=fields)

        self._objects.begin(job, done)
