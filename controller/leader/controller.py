"""Controller: one leadership after the other, each from the first mirror to the last write."""

from __future__ import annotations

import gc
import logging
import secrets
import threading
import time

from controller import times
from controller.cluster.cluster import Cluster
from controller.leader.engine import Engine
from controller.leader.fence import Fence
from controller.leader.mirrors import Inbox, Mirrors, mignode_of
from controller.options import Options
from controller.report.metrics import ControllerMetrics
from controller.report.report import PodConditions, Reporter
from controller.serve.evaluations import evaluating
from controller.serve.world import World
from controller.write.claims import ClaimWriter
from controller.write.in_flight import InFlight, Senders
from controller.write.requests import NotLeadingError, Requests
from dra.cel.kinds import Kinds
from dra.kube.client import KubeApi
from dra.kube.events import EventSink
from dra.kube.lease import LeaderElector
from dra.kube.timing import Clock, rfc3339
from dra.monitoring.probes import Probes, Pulse

_log = logging.getLogger(__name__)


class Controller:
    """One leadership at a time; ``run`` may be called again. Without ``elector`` it always leads.

    Probes: it is live unless its loop is stuck or a mirror has ended. It is ready while it does not
    lead, and when it leads and has listed the cluster.
    """

    def __init__(  # noqa: PLR0913 - what it acts on, and who listens
        self,
        api: KubeApi,
        sink: EventSink,
        options: Options,
        *,
        clock: Clock,
        metrics: ControllerMetrics,
        elector: LeaderElector | None = None,
        probes: Probes | None = None,
    ) -> None:
        self._api = api
        self._sink = sink
        self._options = options
        self._clock = clock
        self._metrics = metrics
        self._elector = elector
        self._mirrors = Mirrors(api, options.driver_name)
        self._pulse = Pulse(times.STUCK, clock=clock.monotonic)
        if probes is not None:
            probes.live.add("work", self._pulse)
            probes.live.add("mirrors", lambda: self._mirrors.ended)
            probes.ready.add("mirrors", lambda: self._mirrors.missing)

    def run(self, stop: threading.Event) -> None:
        """Allocate until ``stop`` is set."""
        inbox = Inbox()
        watcher = threading.Thread(target=_wake_at, args=(stop, inbox), daemon=True)
        watcher.start()
        self._metrics.begins()
        try:
            with self._mirrors.running(inbox):
                self._lead(inbox, stop)
        finally:
            stop.set()
            self._pulse.rest()
            self._metrics.begins()
            watcher.join()

    def _lead(self, inbox: Inbox, stop: threading.Event) -> None:
        """Lead until ``stop`` is set."""
        options = self._options
        cluster = Cluster(
            options.driver_name,
            options.finalizer,
            Kinds(),
            schedulers=options.schedulers,
            claims_mirror=self._mirrors.of_claims,
        )
        if not self._mirrors.fill(cluster, inbox, stop, self._clock):
            return
        senders = Senders()
        requests = Requests(
            kube=self._api,
            driver=options.driver_name,
            leads=lambda: self._leads() and not stop.is_set(),
            now=self._clock.now,
        )
        writer = ClaimWriter(
            requests, finalizer=options.finalizer, labels_nodes=options.eager_creation
        )
        try:
            _apply(cluster, inbox)
            fence = Fence(
                cluster,
                writer,
                InFlight(senders.send, inbox.wake),
                mark=f"{rfc3339(self._clock.now())} {secrets.token_hex(4)}",
                now=self._clock.monotonic,
            )
            self._serve(cluster, writer, senders, inbox, fence=fence, stop=stop)
        except NotLeadingError:
            _log.warning("no longer leading: nothing more is written")
        finally:
            stop.set()
            senders.close()

    def _leads(self) -> bool:
        return self._elector is None or self._elector.is_leader

    def _serve(  # noqa: PLR0913 - what it works on and with
        self,
        cluster: Cluster,
        writer: ClaimWriter,
        senders: Senders,
        inbox: Inbox,
        *,
        fence: Fence,
        stop: threading.Event,
    ) -> None:
        """Raise ``fence`` until it stands; then work until stopped.

        Raises:
            NotLeadingError: nothing may be written any more.
        """
        now = self._clock.monotonic
        in_flight = InFlight(senders.send, inbox.wake)
        self._metrics.begins(cluster.waiting_claims, cluster.fleet)
        conditions = PodConditions(writer.requests, in_flight, now=now)
        with evaluating(cluster, wake=inbox.wake, now=now) as evaluations:
            reporter = Reporter(self._sink, conditions, cluster, self._metrics, now)
            engine = Engine(
                World(
                    cluster,
                    writer,
                    in_flight,
                    reporter,
                    self._options,
                    now=now,
                    evaluations=evaluations,
                )
            )
            while not (fence.stands() or stop.is_set()):
                self._turn(cluster, inbox, fence)
            cluster.learn_demand()
            engine.absorb()
            fields = {
                "mignodes": len(cluster.fleet.nodes),
                "pods": len(cluster.pods),
                "claims": len(cluster.claims),
            }
            _log.info("ready", extra=fields)
            # What is mirrored now stays for long: the collector need not look at it again and
            # again, which takes half a second with 40,000 claims.
            gc.unfreeze()
            gc.collect()
            gc.freeze()
            while not stop.is_set():
                self._turn(cluster, inbox, engine)

    def _turn(self, cluster: Cluster, inbox: Inbox, worker: Engine | Fence) -> None:
        self._pulse.beat()
        if worker.work():
            changes = inbox.take()
        else:
            wait = worker.due - self._clock.monotonic()
            changes = inbox.take(min(times.IDLE, max(0.0, wait)))
        for resource, change in changes:
            name = mignode_of(resource, change)
            begun = time.thread_time() if name else 0.0  # each reading is a system call
            cluster.apply(resource, change)
            if name:
                inbox.charge(name, time.thread_time() - begun)
        worker.absorb()


def _apply(cluster: Cluster, inbox: Inbox) -> None:
    for resource, change in inbox.take():
        cluster.apply(resource, change)


def _wake_at(stop: threading.Event, inbox: Inbox) -> None:
    stop.wait()
    inbox.wake()
