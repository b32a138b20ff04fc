"""Pods made as fast as the API server takes them, and the moments at which they are bound."""

from __future__ import annotations

import itertools
import math
import random
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self

from dra.common.resources import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, Obj, Resource
from dra.kube.client import KubeApi
from dra.kube.reflector import Change, Reflector
from hack.bench.control import objects
from hack.bench.control.effort import Effort

CREATORS = 4
"""Threads that create and delete objects."""


@dataclass(frozen=True, slots=True)
class Burst:
    """``bound`` of ``pods`` were bound within ``seconds`` from the first creation to the last.

    ``effort`` is what was done until then, ``moments`` when each was bound, and ``waits`` how long
    after it was asked for, in seconds.
    """

    pods: int
    bound: int
    seconds: float
    effort: Effort
    moments: tuple[float, ...] = ()
    waits: tuple[float, ...] = ()

    @property
    def rate(self) -> float:
        """Pods bound per second."""
        return self.bound / self.seconds if self.bound else 0.0


class Bindings:
    """Makes pods, each with a claim of its own for one slice, and watches them being bound.

    ``profiles`` is what claims draw from, each with its weight. With ``templates`` the claims are
    made from templates, by kube-controller-manager; without, they are there before their pods, and
    ``made`` is called with the name of each. ``effort`` gives what was done so far.
    """

    def __init__(  # noqa: PLR0913 - what is made, and who is told
        self,
        api: KubeApi,
        profiles: dict[str, float],
        *,
        templates: bool,
        seed: int,
        made: Callable[[str], object] = lambda _: None,
        effort: Callable[[], Effort] = Effort,
    ) -> None:
        self._effort = effort
        self._api = api
        self._profiles = profiles
        self._templates = templates
        self._made = made
        self._draw = random.Random(seed)
        self._numbers = itertools.count()
        self._bound: dict[str, float] = {}
        self._changed = threading.Condition()
        self._mirror = Reflector(
            api, PODS, field_selector="spec.nodeName!=", on_event=self._take, watch_seconds=3600
        )
        self._creators = ThreadPoolExecutor(CREATORS)

    def __enter__(self) -> Self:
        self._mirror.start()
        self._mirror.wait_synced(None)
        if self._templates:
            for profile in self._profiles:
                claim = objects.claim(_template(profile), profile)
                spec = {"spec": objects.claim_spec(profile)}
                self._api.create(
                    RESOURCE_CLAIM_TEMPLATES,
                    {**claim, "kind": RESOURCE_CLAIM_TEMPLATES.kind, "spec": spec},
                )
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()
        if self._templates:
            for profile in self._profiles:
                self._api.delete(RESOURCE_CLAIM_TEMPLATES, _template(profile), namespace="default")
        self._mirror.stop()
        self._creators.shutdown()

    def burst(
        self, count: int, *, gated: bool, limit_seconds: float, pace: float = math.inf
    ) -> Burst:
        """Make ``count`` pods and wait until all are bound, or the time is over.

        ``pace`` is how many are made a second, at the most.
        """
        pods = self._prepare(count, gated=gated)
        before = self._effort()
        started = time.monotonic()
        asked: dict[str, float] = {}

        def create(number: int, pod: Obj) -> None:
            time.sleep(max(0.0, started + number / pace - time.monotonic()))
            asked[pod["metadata"]["name"]] = time.monotonic()
            self._api.create(PODS, pod)

        self._each(lambda numbered: create(*numbered), enumerate(pods))
        names = [pod["metadata"]["name"] for pod in pods]
        with self._changed:
            self._changed.wait_for(
                lambda: all(name in self._bound for name in names),
                timeout=max(0.0, started + limit_seconds - time.monotonic()),
            )
            bound = [self._bound[name] for name in names if name in self._bound]
            waits = [self._bound[name] - asked[name] for name in names if name in self._bound]
        # Of an unfinished burst the whole time counts, that of the pods still waiting included.
        last = max(bound) if len(bound) == count else time.monotonic()
        moments = tuple(sorted(moment - started for moment in bound))
        effort = self._effort() - before
        return Burst(count, len(bound), last - started, effort, moments, tuple(sorted(waits)))

    def writes(self, count: int, write: Callable[[str], object]) -> Burst:
        """Do ``write`` to each of ``count`` claims that no pod has; they count as bound."""
        named = self._draw_names(count)
        self._each(lambda n: self._api.create(RESOURCE_CLAIMS, objects.claim(*n)), named)
        before, started = self._effort(), time.monotonic()
        self._each(lambda n: write(n[0]), named)
        return Burst(count, count, time.monotonic() - started, self._effort() - before)

    def singly(self, count: int, *, gated: bool, limit_seconds: float) -> list[float]:
        """Seconds from the creation of a pod to its binding, one pod after the other."""
        times = []
        ends = time.monotonic() + limit_seconds
        for _ in range(count):
            if time.monotonic() > ends:
                break
            (pod,) = self._prepare(1, gated=gated)
            name = pod["metadata"]["name"]
            started = time.monotonic()
            self._api.create(PODS, pod)
            with self._changed:
                if self._changed.wait_for(lambda n=name: n in self._bound, timeout=limit_seconds):  # type: ignore[misc]
                    times.append(self._bound[name] - started)
        return times

    def clear(self) -> None:
        """Delete all pods and claims, and wait until they are gone."""
        pods = self._api.list(PODS, namespace="default").items
        self._each(lambda p: self._delete(PODS, p), pods)
        claims = self._api.list(RESOURCE_CLAIMS, namespace="default").items
        self._each(lambda c: self._delete(RESOURCE_CLAIMS, c), claims)
        ends = time.monotonic() + 120
        while left := self._api.list(RESOURCE_CLAIMS, namespace="default").items:
            if time.monotonic() > ends:
                raise TimeoutError(f"{len(left)} claims stay, such as {left[0]['metadata']}")
            time.sleep(0.2)

    def _prepare(self, count: int, *, gated: bool) -> list[Obj]:
        """Pods to create; their claims exist, or their templates do."""
        named = self._draw_names(count)
        if self._templates:
            return [
                objects.pod(name, gated=gated, resourceClaimTemplateName=_template(profile))
                for name, profile in named
            ]
        self._each(lambda n: self._make(*n), named)
        return [objects.pod(name, gated=gated, resourceClaimName=name) for name, _ in named]

    def _draw_names(self, count: int) -> list[tuple[str, str]]:
        """Names of claims to be made, each with its profile."""
        weights = [*self._profiles.values()]
        drawn = self._draw.choices([*self._profiles], weights, k=count)
        return [(f"bench-{next(self._numbers)}", profile) for profile in drawn]

    def _make(self, name: str, profile: str) -> None:
        self._api.create(RESOURCE_CLAIMS, objects.claim(name, profile))
        self._made(name)

    def _each(self, act: Callable[..., object], things: Iterable[object]) -> None:
        for _ in self._creators.map(act, things):
            pass

    def _delete(self, resource: Resource, obj: Obj) -> None:
        name = obj["metadata"]["name"]
        self._api.delete(resource, name, namespace="default", grace_seconds=0)

    def _take(self, change: Change) -> None:
        if change.new is not None:
            name = change.new["metadata"]["name"]
            with self._changed:
                self._bound.setdefault(name, time.monotonic())
                self._changed.notify_all()


def _template(profile: str) -> str:
    return "bench-" + profile.replace(".", "-").replace("+", "-")
