"""The running program: its parts, and the order in which they are started and stopped."""

from __future__ import annotations

import logging
import threading

from dra.claims.reasons import NodeReason
from dra.gpu.inventory import (
    HOST_USERS_ONLY,
    MAKES_RESERVATIONS,
    AllocatorKind,
    ClaimRef,
    Inventory,
    Reservation,
)
from dra.kube.client import KubeApi
from dra.kube.loop import Loop
from kubeletplugin import times
from kubeletplugin.common import build_common
from kubeletplugin.daemon.build_claims import build_claims
from kubeletplugin.daemon.parts import build_gpus, build_kubelet, build_publishing
from kubeletplugin.gpus.node import refuse_namesake
from kubeletplugin.journal.entries import HELD
from kubeletplugin.journal.journal import exclusive
from kubeletplugin.options import Options
from kubeletplugin.publishing.mignode import NodeFacts
from kubeletplugin.sockets import remove_stale, sockets
from kubeletplugin.telemetry.telemetry import Telemetry

_log = logging.getLogger(__name__)


class Daemon:
    """Plugin of one node, run by the process that owns its state directory.

    Lower parts are built first. A lower part gets hooks to call a part that is built later; they
    are called only once threads run.
    """

    def __init__(self, options: Options, api: KubeApi, telemetry: Telemetry) -> None:
        self._ending = threading.Event()
        self.common = build_common(options, api, telemetry)
        self.gpus = build_gpus(
            self.common,
            drain=lambda: self.publishing.mignode.drain,
            read_mignode=self._read_mignode,
            refresh_status=self._refresh_status,
            on_instances=self._check_soon,
            recover=self._recover,
            settle=self._settle,
            end=self._end,
        )
        self.publishing = build_publishing(
            self.common,
            self.gpus,
            facts=self._facts,
            on_reserved=self._take_reservations,
        )
        self.claims = build_claims(self.common, self.gpus, self.publishing)
        self.kubelet = build_kubelet(
            self.common,
            self.gpus.monitor,
            self.claims.node,
            on_registered=self.claims.node.outcomes.registered,
        )
        self._listen()

    def run(self, stop: threading.Event) -> None:
        """Serve until ``stop`` is set, then finish the calls that are under way.

        Raises:
            HostError: a socket cannot be used.
        """
        self._ending = stop
        remove_stale(self.common.options)
        self.kubelet.server.start()
        for thread in self._threads:
            thread.start()
        self.gpus.node_watch.start()
        if self.claims.claim_watch is not None:
            self.claims.claim_watch.start()
        # Until the GPUs are known, the MigNode of the last run is better than an empty one.
        self.common.readiness.wait_decided(times.FIRST_LOOK_SECONDS)
        self.publishing.mignode.start()
        self.publishing.slices.start()
        self._begin_probes()
        stop.wait()
        self._stop()

    def _listen(self) -> None:
        """Register the parts that are to be called after changes on this node."""
        common, gpus = self.common, self.gpus
        common.telemetry.watch(gpus.monitor.gpus, common.journal, common.readiness)
        common.changed.add_first(gpus.hardware.follow)
        common.changed.add(
            lambda: common.reports.report_journal(common.journal.failure),
            self.kubelet.health.notify,
            self.publishing.statuses.thread.notify,
            self.publishing.mignode.thread.notify,
            self.publishing.slices.thread.notify,
            gpus.monitor.thread.notify,
            gpus.loop.notify,
        )

    @property
    def _threads(self) -> tuple[Loop, ...]:
        """Threads to start before the first MigNode is written."""
        gpus, claims = self.gpus, self.claims
        changed, statuses = self.common.changed.thread, self.publishing.statuses.thread
        last = (gpus.loop, gpus.monitor, claims.janitor, claims.early)
        return (changed, statuses, gpus.hardware.looks, *(part.thread for part in last))

    def _begin_probes(self) -> None:
        publishers = (self.publishing.mignode.thread, self.publishing.slices.thread)
        self.common.telemetry.liveness.begin(
            self.kubelet.sockets,
            self.common.readiness,
            threads=[thread.problem for thread in (*self._threads, *publishers)],
            overdue=self.gpus.library.overdue,
        )

    def _stop(self) -> None:
        """Stop all parts within ``STOP_SECONDS``; work that hangs is left to the next start."""
        stopping = threading.Thread(target=self._stop_parts, name="stop", daemon=True)
        stopping.start()
        stopping.join(times.STOP_SECONDS)
        if stopping.is_alive():
            _log.error("stopped before all work was done, as something hangs")

    def _stop_parts(self) -> None:
        _log.info("stopping: no new calls, running ones are finished")
        self.common.telemetry.liveness.end()
        if self.claims.claim_watch is not None:
            self.claims.claim_watch.stop()
        _finish(self.claims.early.thread)
        self.kubelet.server.withdraw(self.kubelet.sockets.registration)
        self.kubelet.health.close()
        self.kubelet.server.stop(times.DRAIN_SECONDS)
        self.claims.node.tasks.wait_idle(times.DRAIN_SECONDS)
        self.claims.janitor.thread.stop()
        self.claims.janitor.give_up_idle()
        self.claims.node.tasks.stop()
        self.claims.janitor.leave()
        self.gpus.node_watch.stop()
        self.gpus.monitor.stop()
        _finish(self.gpus.loop.thread, self.gpus.hardware.looks, self.common.changed.thread)
        self.publishing.slices.stop()
        self.publishing.mignode.stop()
        self.publishing.statuses.stop()
        self.common.events.close()
        _log.info("stopped")

    def _read_mignode(self) -> Inventory | None:
        return self.publishing.mignode.look()

    def _facts(self) -> NodeFacts:
        outcomes, needs = self.claims.node.outcomes, self.claims.needs
        return NodeFacts(
            outcomes.listed(),
            outcomes.resumed,
            capabilities=(
                *((MAKES_RESERVATIONS,) if self._reserves else ()),
                *(() if self.gpus.hardware.makes_nodes else (HOST_USERS_ONLY,)),
                *needs.offers,
            ),
            answers=self.claims.early.answers(),
            mode=self.claims.layouts.mode,
            missing=needs.missing,
            cdi_hook=needs.hook,
        )

    def _take_reservations(self, reserved: tuple[Reservation, ...]) -> None:
        if self._reserves:
            self.claims.early.take(reserved)

    @property
    def _reserves(self) -> bool:
        """True if slices are made here for reservations, before claims are allocated."""
        by_us = self.common.options.allocator is AllocatorKind.CONTROLLER
        return by_us and self.claims.claim_watch is not None

    def _refresh_status(self, ref: ClaimRef) -> None:
        self.publishing.statuses.show(ref)

    def _check_soon(self) -> None:
        self.claims.janitor.check_soon()

    def _settle(self) -> float | None:
        self.claims.needs.look()
        self.gpus.node_watch.look_again()
        soon = self.claims.layouts.settle()
        self.gpus.mig_mode.settle(self.claims.layouts.wants_mig)
        return soon

    def _end(self) -> None:
        """End this process in order; its container is then started again."""
        self._ending.set()

    def _recover(self) -> None:
        common, statuses = self.common, self.publishing.statuses
        for problem in common.journal.problems:
            _log.error("journal: %s", problem)
            common.reports.report_node(NodeReason.CORRUPTED, f"journal: {problem}", warning=True)
        self.gpus.node_watch.look()
        self.claims.node.rebuild.run()
        self.claims.janitor.recover()
        self.claims.layouts.begin()
        for ref in dict.fromkeys(e.claim for e in common.journal.entries() if e.state in HELD):
            statuses.show(ref)


def _finish(*threads: Loop) -> None:
    """Stop the threads one after another; each finishes its present turn."""
    for thread in threads:
        thread.stop()
        thread.join()


def serve(options: Options, api: KubeApi, telemetry: Telemetry, stop: threading.Event) -> None:
    """Run the plugin until ``stop`` is set; a second process waits until the first has ended.

    Raises:
        HostError: a socket, the state directory or the journal cannot be used, or NVIDIA's own DRA
            driver runs under the same driver name.
    """
    sockets(options)  # raises for a path that is too long, before this process waits
    waits = telemetry.liveness.stand_by
    with exclusive(options.roots.state, stop, waits=waits) as alone:
        if alone:
            refuse_namesake(options, api)
            Daemon(options, api, telemetry).run(stop)
