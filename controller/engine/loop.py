"""Loop of a leadership: feeds what the mirrors report to the engine, and lets it work."""

from __future__ import annotations

import gc
import logging
import threading
import time

from controller.cluster.changes import apply
from controller.cluster.cluster import Cluster
from controller.engine.engine import Engine
from controller.engine.fence import Fence
from controller.engine.inbox import Inbox, mignode_of
from dra.kube.timing import Clock
from dra.monitoring.probes import Pulse

_log = logging.getLogger(__name__)

_IDLE_SECONDS = 60.0


class Loop:
    """Runs in the thread that owns ``cluster``; ``pulse`` is told of every turn."""

    def __init__(
        self,
        cluster: Cluster,
        inbox: Inbox,
        stop: threading.Event,
        *,
        pulse: Pulse,
        clock: Clock,
    ) -> None:
        self._cluster = cluster
        self._inbox = inbox
        self._stop = stop
        self._pulse = pulse
        self._clock = clock

    def run(self, engine: Engine, fence: Fence | None) -> None:
        """Wait until ``fence`` stands, if there is one, then let ``engine`` work until stopped.

        Raises:
            NotLeadingError: nothing may be written any more.
        """
        while not (fence is None or fence.stands() or self._stop.is_set()):
            self._turn(fence)
        self._cluster.learn_demand()
        engine.absorb()
        _log.info(
            "ready",
            extra={
                "mignodes": len(self._cluster.fleet.nodes),
                "pods": len(self._cluster.pods),
                "claims": len(self._cluster.claims),
            },
        )
        # What is mirrored now stays for long: the collector need not look at it again and again,
        # which takes half a second with 40,000 claims.
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        while not self._stop.is_set():
            self._turn(engine)

    def _turn(self, worker: Engine | Fence) -> None:
        """Have a piece of work done, or wait for what brings some."""
        self._pulse.beat()
        if not worker.work():
            due = worker.next_due()
            wait = _IDLE_SECONDS if due is None else due - self._clock.monotonic()
            changes = self._inbox.take(min(_IDLE_SECONDS, max(0.0, wait)))
        else:
            changes = self._inbox.take()
        for resource, change in changes:
            begun = time.thread_time()
            apply(self._cluster, [(resource, change)])
            if name := mignode_of(resource, change):
                self._inbox.charge(name, time.thread_time() - begun)
        worker.absorb()
