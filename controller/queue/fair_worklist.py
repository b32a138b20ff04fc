"""Work list of pods in which namespaces take turns, so that none waits behind all of another's."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from controller.queue.line import Urgency, priority
from controller.queue.worklist import WorkList
from dra.common.resources import ObjectKey


class FairWorkList:
    """Pods by namespace and name, each once. ``now`` gives monotonic seconds. Not thread-safe.

    Higher priority goes first, of whatever namespace. Among equals the namespace comes next that
    was not served for longest, with the pod that is the most urgent there.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lists: dict[str, WorkList[ObjectKey]] = {}
        self._turns: dict[str, int] = {}
        self._turn = 0

    def add(self, key: ObjectKey, order: Urgency, *, at: float | None = None) -> None:
        """Look at ``key`` at once, or at the monotonic time ``at``."""
        self._of(key).add(key, order, at=at)
        self._join(key[0])

    def retry(self, key: ObjectKey, order: Urgency) -> float:
        """Look at ``key`` again after a pause that doubles with every failure in a row."""
        pause = self._of(key).retry(key, order)
        self._join(key[0])
        return pause

    def forget_failure(self, key: ObjectKey) -> None:
        """Forget the failures of ``key``."""
        if key[0] in self._lists:
            self._lists[key[0]].forget_failure(key)
            self._tidy(key[0])

    def peek(self) -> Urgency | None:
        """The urgency of the next pod that is due, None when none is."""
        found = self._next()
        return None if found is None else self._lists[found].peek()

    def pop(self) -> ObjectKey | None:
        """The next pod that is due, or None."""
        namespace = self._next()
        if namespace is None:
            return None
        key = self._lists[namespace].pop()
        del self._turns[namespace]
        if len(self._lists[namespace]):
            self._join(namespace)
        self._tidy(namespace)
        return key

    def next_due(self) -> float | None:
        """The monotonic time of the next pod: now or in the past when one is ready."""
        times = (self._lists[namespace].next_due() for namespace in self._turns)
        return min((t for t in times if t is not None), default=None)

    def _of(self, key: ObjectKey) -> WorkList[ObjectKey]:
        known = self._lists.get(key[0])
        if known is None:
            known = self._lists[key[0]] = WorkList(self._now)
        return known

    def _join(self, namespace: str) -> None:
        """Have ``namespace`` come after those that are there, if it is not."""
        if namespace not in self._turns:
            self._turn += 1
            self._turns[namespace] = self._turn

    def _tidy(self, namespace: str) -> None:
        if self._lists[namespace].is_blank:
            del self._lists[namespace]

    def _next(self) -> str | None:
        """The namespace whose turn it is, None when nothing is due."""
        return min(self._due(), default=(0, 0, None))[2]

    def _due(self) -> Iterator[tuple[int, int, str | None]]:
        for namespace, turn in self._turns.items():
            first = self._lists[namespace].peek()
            if first is not None:
                yield -priority(first), turn, namespace
