"""Loop of a leading controller: mirrors the cluster, feeds changes to the engine, lets it work.

The mirrors start with leadership and list anew, so that a new leader knows every write of the one
before it.
"""

from __future__ import annotations

import gc
import logging
import secrets
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from controller.cluster.changes import MIRRORED, OPTIONAL, apply
from controller.cluster.cluster import Cluster
from controller.cluster.trimming import Trimmer, remembering
from controller.engine.engine import Engine
from controller.engine.evaluations import Evaluations, evaluating
from controller.engine.fence import Fence
from controller.engine.inbox import Inbox
from controller.reporting.observer import ControllerObserver
from controller.reporting.podconditions import PodConditions
from controller.reporting.report import Reporter
from controller.writing.handover import Handover, NoHandover
from controller.writing.in_flight import InFlight
from controller.writing.outbox import Outbox, Senders
from controller.writing.writer import NotLeadingError, Writer
from dra.cel.kinds import Kinds
from dra.claims.wants import Reader
from dra.common.resources import Resource
from dra.gpu.inventory import ClaimRef
from dra.gpu.names import finalizer
from dra.kube.client.transport import KubeApi
from dra.kube.events.sink import EventSink
from dra.kube.mirror.reflector import Change, Reflector
from dra.kube.timing import Clock, rfc3339
from dra.monitoring.probes import Probes, Pulse

_log = logging.getLogger(__name__)

_PATIENCE_SECONDS = 10.0
_IDLE_SECONDS = 60.0
_STUCK_SECONDS = 600.0
"""Far longer than any decision, and than any number of requests for one pod that fail."""


@dataclass(frozen=True, slots=True)
class Names:
    """The names under which the controller acts, and how its finalizer comes onto claims.

    ``finalizer_at_creation``: the API server puts it on every claim of ours.
    """

    driver: str
    finalizer_at_creation: bool = False

    @property
    def finalizer(self) -> str:
        """Our finalizer on claims, and the scheduling gate that we lift."""
        return finalizer(self.driver)


class Controller:
    """One leadership at a time; ``run`` may be called again.

    Live is who keeps working through its list, or need not; ready is who stands by or has mirrored
    the cluster.
    """

    def __init__(  # noqa: PLR0913 - what it acts on, and who listens
        self,
        api: KubeApi,
        sink: EventSink,
        names: Names,
        *,
        clock: Clock,
        leads: Callable[[], bool] = lambda: True,
        handover: Handover | None = None,
        observer: ControllerObserver | None = None,
        probes: Probes | None = None,
    ) -> None:
        self._api = api
        self._sink = sink
        self._names = names
        self._clock = clock
        self._leads = leads
        self._handover = handover or NoHandover()
        self._observer = observer or ControllerObserver()
        self._mirrors: list[Reflector] = []
        self._pulse = Pulse(_STUCK_SECONDS, clock=clock.monotonic)
        if probes is not None:
            probes.live.add("work", self._pulse)
            probes.live.add("mirrors", self._ended_mirrors)
            probes.ready.add("mirrors", self._missing_mirrors)

    def run(self, stop: threading.Event) -> None:
        """Allocate until ``stop`` is set."""
        inbox = Inbox()
        mirrors = [
            Reflector(
                self._api,
                resource,
                on_event=_deliver(inbox, resource),
                on_listed=partial(inbox.put, resource, None),
                keep=Trimmer(resource, self._names.driver),
                remember=remembering(resource),
            )
            for resource in (*MIRRORED, *OPTIONAL)
        ]
        watcher = threading.Thread(target=_wake_at, args=(stop, inbox), daemon=True)
        watcher.start()
        self._observer.begins()
        try:
            for mirror in mirrors:
                mirror.start()
            self._mirrors = mirrors
            cluster = self._mirrored(mirrors, inbox, stop)
            if cluster is None:
                settled = self._handover.settled  # as it was: nothing was written
            else:
                settled = self._work(cluster, inbox, stop)
            if settled:
                self._handover.settle()
        finally:
            stop.set()
            self._mirrors = []
            self._pulse.rest()
            self._observer.begins()
            for mirror in mirrors:
                mirror.stop()
            watcher.join()

    def _ended_mirrors(self) -> str:
        return ", ".join(f"{m.resource} has ended" for m in self._mirrors if m.has_ended)

    def _missing_mirrors(self) -> str:
        missing = ", ".join(str(m.resource) for m in self._mirrors if _lacks(m))
        return f"not listed yet: {missing}" if missing else ""

    def _mirrored(
        self, mirrors: list[Reflector], inbox: Inbox, stop: threading.Event
    ) -> Cluster | None:
        """The cluster once everything is mirrored, None when stopped before.

        What is listed is taken at once, so that it need not be held whole. Complains about what is
        missing.
        """
        names = self._names
        cluster = Cluster(names.driver, names.finalizer, Kinds())
        complain_at = self._clock.monotonic() + _PATIENCE_SECONDS
        while not stop.is_set():
            missing = [m.resource for m in mirrors if _lacks(m)]
            apply(cluster, inbox.take(0.01))
            if not missing:
                _tell_denied(mirrors)
                return cluster
            if self._clock.monotonic() >= complain_at:
                complain_at += _PATIENCE_SECONDS
                _log.warning(
                    "nothing is allocated before these can be listed; "
                    "is the CRD installed and does RBAC allow list and watch?",
                    extra={"missing": ", ".join(str(r) for r in missing)},
                )
        return None

    def _work(self, cluster: Cluster, inbox: Inbox, stop: threading.Event) -> bool:
        """Lead until ``stop`` is set; returns whether nothing can arrive that was sent until then.

        ``controller.writing.handover`` has the conditions.
        """
        senders, writer = Senders(), self._writer(stop)
        fence: Fence | None = None
        try:
            apply(cluster, inbox.take())
            if self._handover.settled:
                _log.info("no fence: nothing is on its way that former leaders sent")
            else:
                fence = self._fence(inbox, cluster, writer=writer, outbox=senders)
            self._serve(cluster, inbox, stop, fence=fence, writer=writer, outbox=senders)
        except NotLeadingError:
            _log.warning("no longer leading: nothing more is written")
        finally:
            stop.set()
            senders.close()  # whoever leads next may rely on it that nothing more is sent
        apply(cluster, inbox.take())
        return _is_settled(fence, writer.unanswered.fitting(cluster.claims))

    def _serve(  # noqa: PLR0913 - what it works on and with
        self,
        cluster: Cluster,
        inbox: Inbox,
        stop: threading.Event,
        *,
        fence: Fence | None,
        writer: Writer,
        outbox: Outbox,
    ) -> None:
        reader = Reader(self._names.driver, cluster.fleet.kinds, cluster.classes)
        clock = self._clock.monotonic
        with evaluating(cluster, wake=inbox.wake, now=clock) as evaluations:
            engine = self._engine(inbox, cluster, reader, evaluations, writer=writer, outbox=outbox)
            self._lead(engine, cluster, inbox, stop, fence=fence)

    def _lead(
        self,
        engine: Engine,
        cluster: Cluster,
        inbox: Inbox,
        stop: threading.Event,
        *,
        fence: Fence | None,
    ) -> None:
        while not (fence is None or fence.stands() or stop.is_set()):
            self._turn(fence, cluster, inbox)
        cluster.learn_demand()
        engine.absorb()
        _log.info(
            "ready",
            extra={
                "mignodes": len(cluster.fleet.nodes),
                "pods": len(cluster.pods),
                "claims": len(cluster.claims),
            },
        )
        # What is mirrored now stays for long: the collector need not look at it again and again,
        # which takes half a second with 40,000 claims.
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        while not stop.is_set():
            self._turn(engine, cluster, inbox)

    def _turn(self, worker: Engine | Fence, cluster: Cluster, inbox: Inbox) -> None:
        """Have a piece of work done, or wait for what brings some."""
        self._pulse.beat()
        if not worker.work():
            due = worker.next_due()
            wait = _IDLE_SECONDS if due is None else due - self._clock.monotonic()
            changes = inbox.take(min(_IDLE_SECONDS, max(0.0, wait)))
        else:
            changes = inbox.take()
        apply(cluster, changes)
        worker.absorb()

    def _writer(self, stop: threading.Event) -> Writer:
        return Writer(
            self._api,
            driver=self._names.driver,
            finalizer=self._names.finalizer,
            now=self._clock.now,
            leads=lambda: self._leads() and not stop.is_set(),
        )

    def _fence(self, inbox: Inbox, cluster: Cluster, *, writer: Writer, outbox: Outbox) -> Fence:
        return Fence(
            cluster,
            writer,
            InFlight(outbox, inbox.wake),
            mark=f"{rfc3339(self._clock.now())} {secrets.token_hex(4)}",
            now=self._clock.monotonic,
        )

    def _engine(  # noqa: PLR0913 - what it works on and with
        self,
        inbox: Inbox,
        cluster: Cluster,
        reader: Reader,
        evaluations: Evaluations,
        *,
        writer: Writer,
        outbox: Outbox,
    ) -> Engine:
        names = self._names
        return Engine(
            cluster,
            reader,
            writer=writer,
            outbox=outbox,
            reporter=Reporter(
                self._sink,
                PodConditions(writer, outbox, driver=names.driver, now=self._clock.monotonic),
                self._clock.monotonic,
                observer=self._observer,
            ),
            gate=names.finalizer,
            finalizer_at_creation=names.finalizer_at_creation,
            now=self._clock.monotonic,
            wake=inbox.wake,
            observer=self._observer,
            evaluations=evaluations,
        )


def _lacks(mirror: Reflector) -> bool:
    """True if nothing may be allocated before ``mirror`` has listed."""
    return not mirror.synced and not (mirror.resource in OPTIONAL and mirror.denied)


def _tell_denied(mirrors: Iterable[Reflector]) -> None:
    denied = ", ".join(str(m.resource) for m in mirrors if not m.synced)
    if denied:
        _log.warning(
            "where pods fit is not known in full: kube-scheduler's refusals tell what these would; "
            "let the controller list and watch them, as the chart does",
            extra={"missing": denied},
        )


def _deliver(inbox: Inbox, resource: Resource) -> Callable[[Change], None]:
    return lambda change: inbox.put(resource, change)


def _is_settled(fence: Fence | None, unanswered: list[ClaimRef]) -> bool:
    """True if no allocation can be made any more; logs those that may be."""
    if unanswered:
        _log.warning(
            "an allocation was not answered and may still be made: the next leader fences claims",
            extra={"claims": ", ".join(map(str, unanswered))},
        )
    incomplete = fence is not None and not fence.has_no_gap()
    if incomplete:
        _log.warning("not every claim was fenced: the next leader fences claims")
    return not unanswered and not incomplete


def _wake_at(stop: threading.Event, inbox: Inbox) -> None:
    stop.wait()
    inbox.wake()
