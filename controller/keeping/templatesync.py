"""Synchronisation of the templates that limits become, in namespaces that opted in.

There is one for each profile of the nodes, and one for whatever else a living pod names, as many as
a namespace may have. None is ever wrong, as its name says what it asks for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf

from controller.cluster.cluster import Cluster
from controller.cluster.effects import Effects
from controller.keeping.unused_templates import MOST, UnusedTemplates
from controller.reporting.report import Reporter
from controller.writing.in_flight import InFlight, WriteAnswer
from controller.writing.leader_requests import NotLeadingError
from controller.writing.object_writer import ObjectWriter
from dra.claims.reasons import Obstacle, Reason
from dra.common.resources import Obj, ObjectKey
from dra.kube.errors import InvalidError
from dra.kube.timing import Backoff
from dra.limits.rewriting import template
from dra.pods.pods import Pod

_log = logging.getLogger(__name__)

_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 60.0


@dataclass(slots=True)
class _Lacking:
    """Names of the templates that a namespace lacks: those that pods wait for go first.

    ``others`` are written from ``not_before`` on, ``held`` had no room until ``room_at``.
    """

    awaited: dict[str, None] = field(default_factory=dict)
    others: dict[str, None] = field(default_factory=dict)
    held: dict[str, None] = field(default_factory=dict)
    not_before: float = 0.0
    room_at: float = inf
    backoff: Backoff = field(
        default_factory=lambda: Backoff(first=_FIRST_PAUSE, limit=_LONGEST_PAUSE, jitter=0)
    )

    @property
    def due(self) -> float:
        """Monotonic time of the next write; infinite where there is none."""
        if self.awaited:
            return 0.0
        others = self.not_before if self.others else inf
        return min(others, self.room_at if self.held else inf)

    def __bool__(self) -> bool:
        return bool(self.awaited or self.others or self.held)


class TemplateSync:
    """Writes one template at a time, of one namespace after the other. Not thread-safe."""

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
        self._lacking: dict[str, _Lacking] = {}
        self._unused = UnusedTemplates(cluster, now)
        self._is_writing = False

    @property
    def due(self) -> float | None:
        """Monotonic time of the next write; None where there is none before an answer."""
        if self._is_writing or self._in_flight.full:
            return None
        times = [each.due for each in self._lacking.values()]
        times += [unused] if (unused := self._unused.due) is not None else []
        first = min(times, default=inf)
        return None if first == inf else first

    def note(self, effects: Effects) -> None:
        """Pods, namespaces, templates or profiles may have changed."""
        self._unused.note(effects)
        known = self._cluster.templates
        for namespace, name in effects.templates:
            self._note_template(namespace, name)
        if not known.namespaces:
            return
        for key in effects.pods:
            if (pod := self._cluster.pods.get(key)) is not None:
                for namespace, name in known.awaited(pod):
                    self._await(namespace, name, (pod,))
        for namespace in known.namespaces if effects.classes else effects.opted_in:
            self._look_at(namespace)

    def _note_template(self, namespace: str, name: str) -> None:
        """A template is gone, or the last pod that named it."""
        known, key = self._cluster.templates, (namespace, name)
        if (lacking := self._lacking.get(namespace)) is not None:
            lacking.room_at = self._now()
            if not known.users(key):
                lacking.held.pop(name, None)
                lacking.awaited.pop(name, None)
            self._settle(namespace)
        if not known.lacks(key):
            return
        if name in self._unused.lasting:
            self._add(namespace).others[name] = None
        else:
            self._await(namespace, name, self._waiting_for(namespace, name))

    def write_if_due(self) -> bool:
        """Begin to write or remove one template; False when none is due."""
        if self._is_writing or self._in_flight.full:
            return False
        now = self._now()
        namespace = next((n for n, each in self._lacking.items() if each.due <= now), None)
        if namespace is None:
            key = self._unused.pop()
            return key is not None and self._remove(key)
        # The others' turn is next.
        lacking = self._lacking[namespace] = self._lacking.pop(namespace)
        self._serve(namespace, lacking, now)
        self._settle(namespace)
        return True

    def _settle(self, namespace: str) -> None:
        """Forget a namespace that lacks nothing, unless an answer may have its pause grow."""
        if not self._is_writing and not self._lacking.get(namespace, True):
            del self._lacking[namespace]

    def _look_at(self, namespace: str) -> None:
        """Note the templates of all profiles, and those that pods wait for."""
        known = self._cluster.templates
        lacking = self._add(namespace)
        lacking.room_at = self._now()
        for name in sorted(self._unused.lasting):
            if known.lacks((namespace, name)):
                lacking.others[name] = None
        for name in [*known.named_in(namespace)]:
            if known.lacks((namespace, name)):
                self._await(namespace, name, self._waiting_for(namespace, name))
        self._settle(namespace)

    def _add(self, namespace: str) -> _Lacking:
        return self._lacking.setdefault(namespace, _Lacking())

    def _await(self, namespace: str, name: str, pods: tuple[Pod, ...]) -> None:
        """Have a template made for those of ``pods`` that wait, once there is room for it."""
        if not pods:
            return
        lacking = self._add(namespace)
        is_lasting = name in self._unused.lasting
        if lacking.held and not is_lasting and self._unused.is_full(namespace):
            lacking.held[name] = None
            self._tell(name, pods)
        else:
            lacking.awaited[name] = None

    def _waiting_for(self, namespace: str, name: str) -> tuple[Pod, ...]:
        known = self._cluster.templates
        pods = (self._cluster.pods[key] for key in known.users((namespace, name)))
        return tuple(pod for pod in pods if known.awaits(pod, name))

    def _serve(self, namespace: str, lacking: _Lacking, now: float) -> None:
        """Begin to write the next template of a namespace, or to make room for it."""
        queue = next(
            each
            for each, due in (
                (lacking.awaited, 0.0),
                (lacking.others, lacking.not_before),
                (lacking.held, lacking.room_at),
            )
            if each and due <= now
        )
        known = self._cluster.templates
        while queue:
            name = next(iter(queue))
            key = (namespace, name)
            is_lasting = name in self._unused.lasting
            if not known.lacks(key) or not (is_lasting or known.users(key)):
                del queue[name]
                continue
            if is_lasting or not self._unused.is_full(namespace):
                del queue[name]
                self._write(key)
            else:
                self._make_room(key, lacking, now, is_news=queue is not lacking.held)
            return

    def _make_room(self, key: ObjectKey, lacking: _Lacking, now: float, *, is_news: bool) -> None:
        """Remove a template that no pod has named for a while, in place of one to be made."""
        oldest, may_go = self._unused.oldest(key[0])
        if oldest is not None and may_go <= now:
            self._remove(oldest)
            return
        lacking.room_at = may_go
        if is_news:
            for queue in (lacking.awaited, lacking.others):
                queue.pop(key[1], None)
            lacking.held[key[1]] = None
            self._tell(key[1], self._waiting_for(*key))

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
            self._reporter.template_missing(pod, Obstacle(Reason.TOO_MANY_TEMPLATES, message))

    def _write(self, key: ObjectKey) -> None:
        body = template(key[1], key[0], driver=self._cluster.driver)

        def job() -> Iterator[Obj]:
            yield self._writer.apply_template(body)

        self._is_writing = True
        self._in_flight.start((), job, lambda answer: self._written(key, answer))

    def _written(self, key: ObjectKey, answer: WriteAnswer) -> None:
        self._is_writing = False
        namespace, name = key
        fields = {"template": f"{namespace}/{name}"}
        match answer.error:
            case None:
                self._cluster.templates.set(answer.written[0])
                self._add(namespace).backoff.reset()
                _log.info("ResourceClaimTemplate written", extra=fields)
            case NotLeadingError():
                raise answer.error
            case InvalidError():
                _log.warning(
                    "a ResourceClaimTemplate of somebody else has the name of one of ours: pods "
                    "get what that asks for",
                    extra={**fields, "error": str(answer.error)},
                )
            case _:
                # A namespace that ends refuses all; it leaves the set once it is gone.
                lacking = self._add(namespace)
                lacking.others[name] = None
                pause = lacking.backoff.next_delay()
                lacking.not_before = self._now() + pause
                _log.warning(
                    "ResourceClaimTemplate not written; trying again",
                    extra={**fields, "pause": pause, "error": str(answer.error)},
                )
        self._settle(namespace)

    def _remove(self, key: ObjectKey) -> bool:
        """Begin to remove a template."""
        uid = self._cluster.templates.present[key]

        def job() -> Iterator[Obj]:
            self._writer.remove_template(key, uid=uid)
            yield {}

        self._is_writing = True
        self._in_flight.start((), job, lambda answer: self._removed(key, answer))
        return True

    def _removed(self, key: ObjectKey, answer: WriteAnswer) -> None:
        self._is_writing = False
        fields = {"template": f"{key[0]}/{key[1]}"}
        match answer.error:
            case None:
                self._cluster.templates.remove(key)
                _log.info("ResourceClaimTemplate removed: no pod named it for long", extra=fields)
            case NotLeadingError():
                raise answer.error
            case _:
                self._unused.keep(key)
                error = str(answer.error)
                _log.warning("ResourceClaimTemplate not removed", extra={**fields, "error": error})
