"""Controller: one leadership after the other, each from the first mirror to the last write."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from controller.cluster.changes import apply
from controller.cluster.cluster import Cluster
from controller.engine.engine import Engine
from controller.engine.fence import Fence
from controller.engine.inbox import Inbox
from controller.engine.loop import Loop
from controller.engine.mirrors import Mirrors
from controller.keeping.class_folder import ClassFolder
from controller.reporting.observer import ControllerObserver
from controller.reporting.podconditions import PodConditions
from controller.reporting.report import Reporter
from controller.serving.evaluations import Evaluations, evaluating
from controller.writing.claim_writer import ClaimWriter
from controller.writing.handover import Handover, NoHandover
from controller.writing.in_flight import InFlight
from controller.writing.leader_requests import NotLeadingError
from controller.writing.outbox import Outbox, Senders
from controller.writing.writers import Writers, make_writers
from dra.cel.kinds import Kinds
from dra.claims.reader import Reader
from dra.gpu.inventory import ClaimRef
from dra.gpu.names import finalizer
from dra.kube.client import KubeApi
from dra.kube.events import EventSink
from dra.kube.timing import Clock, rfc3339
from dra.monitoring.probes import Probes, Pulse
from dra.pods.pods import DEFAULT_SCHEDULER

_log = logging.getLogger(__name__)

_STUCK_SECONDS = 600.0
"""Far longer than any decision, and than any number of requests for one pod that fail."""


@dataclass(frozen=True, slots=True)
class Names:
    """The names under which the controller acts, and what it puts on claims and nodes.

    ``finalizer_at_creation``: the API server puts the finalizer on every claim of ours.
    ``node_labels``: nodes get labels that tell of their GPUs.
    ``eager_creation``: claims name their node in a label, so that it makes their slices at once.
    ``evict_failed``: pods may be evicted whose slice cannot be made.
    ``schedulers`` are those whose pods are served: others may never bind what is allocated.
    ``node_classes``: a directory of files that configure classes of nodes, if there are any.
    """

    driver: str
    finalizer_at_creation: bool = False
    node_labels: bool = False
    eager_creation: bool = True
    evict_failed: bool = False
    node_classes: Path | None = None
    schedulers: tuple[str, ...] = (DEFAULT_SCHEDULER,)

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
        self._mirrors = Mirrors(api, names.driver)
        self._pulse = Pulse(_STUCK_SECONDS, clock=clock.monotonic)
        if probes is not None:
            probes.live.add("work", self._pulse)
            probes.live.add("mirrors", lambda: self._mirrors.ended)
            probes.ready.add("mirrors", lambda: self._mirrors.missing)

    def run(self, stop: threading.Event) -> None:
        """Allocate until ``stop`` is set."""
        inbox = Inbox()
        watcher = threading.Thread(target=_wake_at, args=(stop, inbox), daemon=True)
        watcher.start()
        self._observer.begins()
        try:
            with self._mirrors.running(inbox):
                if self._lead_once(inbox, stop):
                    self._handover.settle()
        finally:
            stop.set()
            self._pulse.rest()
            self._observer.begins()
            watcher.join()

    def _lead_once(self, inbox: Inbox, stop: threading.Event) -> bool:
        """Lead once all is mirrored; returns whether nothing can arrive that was sent."""
        names = self._names
        cluster = Cluster(names.driver, names.finalizer, Kinds(), schedulers=names.schedulers)
        if not self._mirrors.fill(cluster, inbox, stop, self._clock):
            return self._handover.settled  # as it was: nothing was written
        return self._work(cluster, inbox, stop)

    def _work(self, cluster: Cluster, inbox: Inbox, stop: threading.Event) -> bool:
        """Lead until ``stop`` is set; returns whether nothing can arrive that was sent until then.

        ``controller.writing.handover`` has the conditions.
        """
        senders, writers = Senders(), self._writers(stop)
        fence: Fence | None = None
        try:
            apply(cluster, inbox.take())
            if self._handover.settled:
                _log.info("no fence: nothing is on its way that former leaders sent")
            else:
                fence = self._fence(inbox, cluster, writer=writers.claims, outbox=senders)
            self._serve(cluster, inbox, stop, fence=fence, writers=writers, outbox=senders)
        except NotLeadingError:
            _log.warning("no longer leading: nothing more is written")
        finally:
            stop.set()
            senders.close()  # whoever leads next may rely on it that nothing more is sent
        apply(cluster, inbox.take())
        return _is_settled(fence, writers.claims.unanswered.fitting(cluster.claims))

    def _serve(  # noqa: PLR0913 - what it works on and with
        self,
        cluster: Cluster,
        inbox: Inbox,
        stop: threading.Event,
        *,
        fence: Fence | None,
        writers: Writers,
        outbox: Outbox,
    ) -> None:
        reader = Reader(self._names.driver, cluster.fleet.kinds, cluster.classes)
        clock = self._clock.monotonic
        with evaluating(cluster, wake=inbox.wake, now=clock) as evaluations:
            engine = self._engine(
                inbox, cluster, reader, evaluations, writers=writers, outbox=outbox
            )
            Loop(cluster, inbox, stop, pulse=self._pulse, clock=self._clock).run(engine, fence)

    def _writers(self, stop: threading.Event) -> Writers:
        return make_writers(
            self._api,
            driver=self._names.driver,
            finalizer=self._names.finalizer,
            now=self._clock.now,
            leads=lambda: self._leads() and not stop.is_set(),
            labels_nodes=self._names.eager_creation,
            evicts=self._names.evict_failed,
        )

    def _fence(
        self, inbox: Inbox, cluster: Cluster, *, writer: ClaimWriter, outbox: Outbox
    ) -> Fence:
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
        writers: Writers,
        outbox: Outbox,
    ) -> Engine:
        names = self._names
        return Engine(
            cluster,
            reader,
            writers=writers,
            outbox=outbox,
            reporter=Reporter(
                self._sink,
                PodConditions(writers.pods, outbox, driver=names.driver, now=self._clock.monotonic),
                self._clock.monotonic,
                observer=self._observer,
            ),
            gate=names.finalizer,
            finalizer_at_creation=names.finalizer_at_creation,
            node_labels=names.node_labels,
            class_files=ClassFolder(names.node_classes).read if names.node_classes else None,
            now=self._clock.monotonic,
            wake=inbox.wake,
            observer=self._observer,
            evaluations=evaluations,
        )


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
