"""Templates that limits become, kept in namespaces that opted in.

There is one for each profile of the nodes, and one for whatever else a living pod names, as many as
a namespace may have. None is ever wrong, as its name says what it asks for. To remove one that no
living pod names does no harm: a pod that names it in the meantime waits for it, and it is made
again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

from controller import times
from controller.cluster.records import Effects
from controller.serve.world import World
from controller.write.in_flight import OneWrite, WriteAnswer
from dra.claims.classes import offered_profiles
from dra.claims.reasons import Obstacle, Reason
from dra.common.resources import RESOURCE_CLAIM_TEMPLATES, Obj, ObjectKey
from dra.kube.errors import InvalidError
from dra.kube.timing import Backoff
from dra.limits.rewriting import is_template_name, template, template_name
from dra.pods.pods import Pod

_log = logging.getLogger(__name__)

MOST = 64
"""Templates of one namespace besides those of the profiles that nodes have."""

AT_ONCE = 20
"""Unused templates that one look gives up; the others are for the next."""


@dataclass(slots=True)
class _Lacking:
    """Names of the templates that a namespace lacks: those that pods wait for go first.

    ``others`` are written once ``pause`` is over, ``held`` had no room until ``room_at``.
    """

    awaited: dict[str, None] = field(default_factory=dict)
    others: dict[str, None] = field(default_factory=dict)
    held: dict[str, None] = field(default_factory=dict)
    room_at: float = inf
    pause: Backoff = field(default_factory=lambda: times.growing(times.KEEPING_AGAIN))

    @property
    def due(self) -> float:
        if self.awaited:
            return 0.0
        return min(self.pause.until if self.others else inf, self.room_at if self.held else inf)

    def next_queue(self, now: float) -> dict[str, None]:
        if self.awaited:
            return self.awaited
        return self.others if self.others and self.pause.until <= now else self.held

    def __bool__(self) -> bool:
        return bool(self.awaited or self.others or self.held)


class LimitTemplates:
    """Writes one template at a time, of one namespace after the other. Not thread-safe."""

    def __init__(self, world: World) -> None:
        self._cluster = world.cluster
        self._templates = world.cluster.templates
        self._writer = world.writers.objects
        self._reporter = world.reporter
        self._now = world.now
        self._writes = OneWrite(world.in_flight)
        self._lacking: dict[str, _Lacking] = {}
        self._lasting: frozenset[str] = frozenset()
        """Names of those of profiles that nodes have: they stay."""
        self._unused_since: dict[ObjectKey, float] = {}
        self._given_up: list[ObjectKey] = []
        self._next_look = world.now() + times.UNUSED_LOOK

    @property
    def due(self) -> float | None:
        if not self._writes.may_begin:
            return None
        first = min((each.due for each in self._lacking.values()), default=inf)
        if self._given_up:
            first = min(first, self._now())
        elif self._templates.present:
            first = min(first, self._next_look)
        return None if first == inf else first

    def note(self, effects: Effects) -> None:
        if effects.classes:
            profiles = offered_profiles(
                self._cluster.fleet.profiles_by_node(), self._cluster.class_objects.keys()
            )
            self._lasting = frozenset(filter(is_template_name, map(template_name, profiles)))
        for key in effects.templates:
            self._unused_since.pop(key, None)
            if self._is_unused(key):
                self._unused_since[key] = self._now()
            self._note_template(key)
        known = self._templates
        if not known.namespaces:
            return
        for key in effects.pods:
            if (pod := self._cluster.pods.get(key)) is not None:
                for awaited in known.awaited(pod):
                    self._await(awaited, (pod,))
        for namespace in known.namespaces if effects.classes else effects.opted_in:
            self._look_at(namespace)

    def work_if_due(self) -> bool:
        if not self._writes.may_begin:
            return False
        now = self._now()
        namespace = next((n for n, each in self._lacking.items() if each.due <= now), None)
        if namespace is None:
            return self._remove_unused(now)
        # The others' turn is next.
        lacking = self._lacking[namespace] = self._lacking.pop(namespace)
        self._serve(namespace, lacking, now)
        self._tidy(namespace)
        return True

    # -- what is lacking

    def _note_template(self, key: ObjectKey) -> None:
        """A template is gone, or the last pod that named it."""
        namespace, name = key
        if (lacking := self._lacking.get(namespace)) is not None:
            lacking.room_at = self._now()
            if not self._templates.users(key):
                lacking.held.pop(name, None)
                lacking.awaited.pop(name, None)
            self._tidy(namespace)
        if self._templates.lacks(key):
            if name in self._lasting:
                self._add(namespace).others[name] = None
            else:
                self._await(key, self._waiting_for(key))

    def _look_at(self, namespace: str) -> None:
        """Note the templates of all profiles, and those that pods wait for."""
        lacking = self._add(namespace)
        lacking.room_at = self._now()
        for name in sorted(self._lasting):
            if self._templates.lacks((namespace, name)):
                lacking.others[name] = None
        for name in [*self._templates.named_in(namespace)]:
            if self._templates.lacks((namespace, name)):
                self._await((namespace, name), self._waiting_for((namespace, name)))
        self._tidy(namespace)

    def _await(self, key: ObjectKey, pods: tuple[Pod, ...]) -> None:
        """Have a template made for those of ``pods`` that wait, once there is room for it."""
        if not pods:
            return
        namespace, name = key
        lacking = self._add(namespace)
        if lacking.held and name not in self._lasting and self._is_full(namespace):
            lacking.held[name] = None
            self._tell(name, pods)
        else:
            lacking.awaited[name] = None

    def _waiting_for(self, key: ObjectKey) -> tuple[Pod, ...]:
        pods = (self._cluster.pods[user] for user in self._templates.users(key))
        return tuple(pod for pod in pods if self._templates.awaits(pod, key[1]))

    def _add(self, namespace: str) -> _Lacking:
        return self._lacking.setdefault(namespace, _Lacking())

    def _tidy(self, namespace: str) -> None:
        """Forget a namespace that lacks nothing, unless an answer may have its pause grow."""
        if not self._writes.is_under_way and not self._lacking.get(namespace, True):
            del self._lacking[namespace]

    # -- writing

    def _serve(self, namespace: str, lacking: _Lacking, now: float) -> None:
        queue = lacking.next_queue(now)
        while queue:
            name = next(iter(queue))
            key, is_lasting = (namespace, name), name in self._lasting
            if not self._templates.lacks(key) or not (is_lasting or self._templates.users(key)):
                del queue[name]
            elif is_lasting or not self._is_full(namespace):
                del queue[name]
                self._write(key)
                return
            else:
                self._make_room(key, lacking, now, is_news=queue is not lacking.held)
                return

    def _make_room(self, key: ObjectKey, lacking: _Lacking, now: float, *, is_news: bool) -> None:
        """Remove a template that no pod has named for a while, in place of one to be made."""
        namespace, name = key
        keys = [(namespace, each) for each in self._templates.names(namespace)]
        unused = [(self._unused_since.setdefault(k, now), k) for k in keys if self._is_unused(k)]
        since, oldest = min(unused, default=(inf, key))
        lacking.room_at = since + times.UNUSED_WHERE_FULL
        if lacking.room_at <= now:
            self._remove(oldest)
        elif is_news:
            for queue in (lacking.awaited, lacking.others):
                queue.pop(name, None)
            lacking.held[name] = None
            self._tell(name, self._waiting_for(key))

    def _tell(self, name: str, pods: tuple[Pod, ...]) -> None:
        for pod in pods:
            namespace = pod.key[0]
            message = (
                f"ResourceClaimTemplate {name!r}, which spec.resourceClaims names for the pod's "
                f"limits, is not made: namespace {namespace} has {MOST} such templates, the most "
                "that one may have, and pods name them (kubectl get resourceclaimtemplates -n "
                f"{namespace}); state an amount that other pods of the namespace state (round "
                "nvidia.com/gpumem up), or end pods that state other amounts: it is made a minute "
                "after the last one has ended"
            )
            obstacle = Obstacle(Reason.TOO_MANY_TEMPLATES, message)
            self._reporter.on_pod(pod, "pod has no claim", obstacle, warns=False)

    def _write(self, key: ObjectKey) -> None:
        body = template(key[1], key[0], driver=self._cluster.driver)

        def job() -> Iterator[Obj]:
            yield self._writer.apply(RESOURCE_CLAIM_TEMPLATES, body)

        self._writes.begin(job, lambda answer: self._written(key, answer))

    def _written(self, key: ObjectKey, answer: WriteAnswer) -> None:
        namespace, name = key
        fields: Obj = {"template": f"{namespace}/{name}"}
        lacking = self._add(namespace)
        if answer.error is None:
            self._templates.set(answer.written[0])
            lacking.pause.reset()
            _log.info("ResourceClaimTemplate written", extra=fields)
        elif isinstance(answer.error, InvalidError):
            _log.warning(
                "a ResourceClaimTemplate of somebody else has the name of one of ours: pods "
                "get what that asks for",
                extra={**fields, "error": str(answer.error)},
            )
        else:
            # A namespace that ends refuses all; it leaves the set once it is gone.
            lacking.others[name] = None
            now = self._now()
            lacking.pause.fail(now)
            fields |= {"pause": lacking.pause.left(now), "error": str(answer.error)}
            _log.warning("ResourceClaimTemplate not written; trying again", extra=fields)
        self._tidy(namespace)

    # -- removing

    def _is_unused(self, key: ObjectKey) -> bool:
        known = self._templates
        return key in known.present and key[1] not in self._lasting and not known.users(key)

    def _is_full(self, namespace: str) -> bool:
        return sum(name not in self._lasting for name in self._templates.names(namespace)) >= MOST

    def _remove_unused(self, now: float) -> bool:
        """Begin to remove a template that was unused for long; False where there is none."""
        if not self._given_up and now >= self._next_look:
            self._next_look = now + times.UNUSED_LOOK
            unused = filter(self._is_unused, self._templates.present)
            self._unused_since = {key: self._unused_since.get(key, now) for key in unused}
            since = now - times.UNUSED_TEMPLATE
            self._given_up = [key for key, at in self._unused_since.items() if at <= since][
                :AT_ONCE
            ]
        while self._given_up:
            key = self._given_up.pop()
            if self._is_unused(key):
                self._remove(key)
                return True
        return False

    def _remove(self, key: ObjectKey) -> None:
        uid = self._templates.present[key]

        def job() -> Iterator[Obj]:
            self._writer.remove(RESOURCE_CLAIM_TEMPLATES, key, uid=uid)
            yield {}

        self._writes.begin(job, lambda answer: self._removed(key, answer))

    def _removed(self, key: ObjectKey, answer: WriteAnswer) -> None:
        fields = {"template": f"{key[0]}/{key[1]}"}
        if answer.error is None:
            self._templates.remove(key)
            _log.info("ResourceClaimTemplate removed: no pod named it for long", extra=fields)
            return
        self._unused_since[key] = self._now()
        fields["error"] = str(answer.error)
        _log.warning("ResourceClaimTemplate not removed", extra=fields)
