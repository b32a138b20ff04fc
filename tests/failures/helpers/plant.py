"""The node program's parts over one node in a folder, without its sockets and threads.

Everything that the program does runs in threads of its own (see ``Plant.run``), so that a process
that was killed stays dead however many of its threads were waiting for something.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, wait
from types import SimpleNamespace
from typing import Any, TypeVar

import sim.nvml
from dra.claims.claims import read_claim
from dra.common.resources import RESOURCE_CLAIMS, Obj
from dra.gpu.inventory import ClaimRef, Inventory
from dra.kube.errors import KubeError
from dra.kube.reflector import Change
from kubeletplugin.claims.node import ClaimAnswer
from kubeletplugin.daemon.daemon import Daemon
from kubeletplugin.errors import PluginError
from kubeletplugin.nvml.calls import Calls, Operation
from kubeletplugin.nvml.errors import NvmlError
from kubeletplugin.options import Options
from kubeletplugin.telemetry.telemetry import Telemetry
from tests.failures.helpers.daemonpods import NAMESPACE
from tests.failures.helpers.recordedapi import RecordedApi
from tests.failures.helpers.site import DRIVER, NODE, Site
from tests.failures.helpers.steps import KilledError, StepRecorder

T = TypeVar("T")
Begin = Callable[[str, str, Callable[[], Any]], Future[Any] | None]
_ROUNDS = 12000
_ROUND_SECONDS = 0.05
WITHIN_SECONDS = 300.0
"""For what kubelet asks, on a busy machine; its own deadline has tests of its own."""


class Plant:
    """The parts of one process of the node program."""

    def __init__(self, site: Site, recorder: StepRecorder) -> None:
        self.site = site
        self.recorder = recorder
        self.api_down = False
        self.events: list[tuple[str, str]] = []
        self._watched: dict[str, Obj] = {}
        self.daemon: Daemon = self.run(self._build)

    def _build(self) -> Daemon:
        with self.recorder.outside():
            sim.nvml.install(self.site.machine.directory)
        options = Options(
            node_name=NODE,
            driver_name=DRIVER,
            roots=self.site.roots,
            idle_seconds=self.site.idle_seconds,
            slice_shares=4,
            node_classes=self.site.root / "classes" if self.site.layouts else None,
            mps_image="registry.example.com/plugin:1" if self.site.mps else "",
            mps_namespace=NAMESPACE,
        )
        recorded = RecordedApi(self.site, self.recorder, is_down=lambda: self.api_down)
        daemon = Daemon(options, recorded.api, Telemetry())
        daemon.layouts.grace = 0.0
        # Sent from a thread of their own, and a courtesy: kept here.
        daemon.common.events.emit = self._emit  # type: ignore[method-assign]
        # Its thread gathers changes for a moment; here they are told of as they come.
        daemon.common.changed.thread.notify = daemon.common.changed.tell  # type: ignore[method-assign]
        # A call that hangs then hangs its claim's thread; the deadline of calls has its own tests.
        daemon.hardware.session._calls = _AtOnce(3600.0)
        # Kubelet answers, and has no pods: a claim that ended without Unprepare is forgotten.
        no_pods: Any = SimpleNamespace(socket=self.site.root, pods=tuple)
        daemon.node._holders._kubelet = no_pods
        tasks = daemon.node.tasks
        tasks.begin = _one_by_one(tasks.begin)  # type: ignore[method-assign, assignment]
        return daemon

    def _emit(self, regarding: Obj, reason: str, message: str, *, warning: bool = False) -> None:
        self.events.append((reason, message))

    def run(self, work: Callable[[], T]) -> T:
        """Do something as the program; raises what it raises, KilledError included."""
        future: Future[T] = Future()

        def body() -> None:
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - handed on
                future.set_exception(error)

        life = self.recorder.life
        threading.Thread(target=body, daemon=True).start()
        for _ in range(_ROUNDS):
            done, _left = wait([future], timeout=_ROUND_SECONDS)
            if done:
                return future.result()
            if self.recorder.life != life:
                # It waits for a thread that was killed: dead as well.
                raise KilledError
        raise TimeoutError("the program does not answer")

    def start(self) -> None:
        """Bring up, recover, serve: what the program does before it answers the first call."""
        self.run(self._look)

    def look(self) -> None:
        """What the hardware's loop does every few seconds."""
        self.run(self._look)

    def _look(self) -> None:
        loop = self.daemon.loop
        try:
            loop._step()
        except (NvmlError, PluginError) as error:
            loop._unavailable(str(error))

    def heed_labels(self) -> None:
        """Read the Node, and do what its labels say."""
        self.run(self.daemon.node_watch.look)
        self.look()

    def tend(self) -> None:
        """A round of the janitor, in which it asks for every claim, and one of early slices."""
        self.run(lambda: self.daemon.janitor.tend(everything=True))
        self.eager_round()

    def publish(self) -> None:
        """Write the statuses of claims and the MigNode, as far as the API answers."""
        self.run(self._publish)

    def _publish(self) -> None:
        self.daemon.hardware.look_where_wanted()
        statuses = self.daemon.statuses
        for writer, keys in (
            (statuses, [*statuses._wishes]),
            (self.daemon.resource_slices, [""]),
            (self.daemon.mignode, [""]),
        ):
            for key in keys:
                _try(lambda: writer._write(key))  # noqa: B023 - called at once

    def prepare(self, ref: ClaimRef, *, within: float = WITHIN_SECONDS) -> ClaimAnswer:
        """What kubelet asks for one claim."""
        node = self.daemon.node
        answer = self.run(lambda: node.prepare(ref, deadline=time.monotonic() + within))
        with self.recorder.outside():
            self.site.tell(ref, [device.cdi_ids for device in answer.devices])
        return answer

    def unprepare(self, ref: ClaimRef, *, within: float = WITHIN_SECONDS) -> ClaimAnswer:
        """What kubelet asks when the last pod of a claim is gone."""
        node = self.daemon.node
        answer = self.run(lambda: node.unprepare(ref, deadline=time.monotonic() + within))
        if not answer.error:
            with self.recorder.outside():
                self.site.forget(ref)
        return answer

    def make_ahead(
        self, ref: ClaimRef, devices: Sequence[str], *, hung: Collection[str] = ()
    ) -> None:
        """Have the slices of a claim made before kubelet asks for them, if it is allocated here.

        ``hung`` are UIDs of claims that are not waited for.
        """
        self.run(lambda: self.daemon.early.expect(ref, tuple(devices)))
        self.eager_round(hung=hung)

    def watch(self, ref: ClaimRef, *, hung: Collection[str] = ()) -> None:
        """The work that the watch of this node's claims gives: slices to make, or to give back.

        ``hung`` are UIDs of claims that are not waited for.
        """
        found = self.site.api().get(RESOURCE_CLAIMS, ref.name, namespace=ref.namespace)
        self._watched[ref.uid] = found
        self._tell(Change("added", None, found))
        self.eager_round(hung=hung)

    def watch_ends(self) -> None:
        """The work that the same watch gives when it tells of the claims that are gone by now."""
        for uid, known in [*self._watched.items()]:
            if not self.site.has_claim(read_claim(known).ref):
                self._tell(Change("deleted", self._watched.pop(uid), None))
        self.eager_round()

    def _tell(self, change: Change) -> None:
        watch = self.daemon.claim_watch
        assert watch is not None
        self.run(lambda: watch._changed(change))

    def eager_round(self, *, hung: Collection[str] = ()) -> None:
        """Make ahead, and give back, what is to be."""
        self.run(lambda: self._eager_round(hung))

    def _eager_round(self, hung: Collection[str]) -> None:
        for _ in range(2):  # what is given back is made after it
            self.daemon.early._turn()
            running = {**self.daemon.node.tasks._running}
            awaited = [future for uid, (_, future) in running.items() if uid not in hung]
            assert not wait(awaited, timeout=WITHIN_SECONDS).not_done, "work that does not end"

    def give_up_idle(self) -> None:
        """Remove what is kept for other claims, as at an orderly end."""
        self.run(self.daemon.janitor.give_up_idle)

    def inventory(self) -> Inventory | None:
        """What would be published."""
        return self.run(self.daemon.inventory.known)


def _one_by_one(begin: Begin) -> Begin:
    """Recovers one claim after the other, so that steps have the same order in each run.

    That claims are recovered beside each other has its own tests.
    """

    def begin_and_wait(uid: str, name: str, work: Callable[[], Any]) -> Future[Any] | None:
        future = begin(uid, name, work)
        if name == "recover" and future is not None:
            wait([future])
        return future

    return begin_and_wait


class _AtOnce(Calls):
    """Calls in the thread that asks for them, with all the time that they take."""

    @property
    def current(self) -> Operation:
        return Operation(lambda: None, "", 0.0, 0.0)

    def run(self, name: str, work: Callable[[], T], *, factor: float = 1.0) -> T:
        return work()

    def operate(self, work: Callable[[], T], *, gpu: str, alone: bool = False) -> T:
        return work()


def _try(work: Callable[[], Any]) -> None:
    try:
        work()
    except KubeError:
        return
