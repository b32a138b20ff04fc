"""One node in a folder, and the node program's parts over it, without its sockets and threads.

Everything that the program does runs in threads of its own (see ``Plant.run``), so that a process
that was killed stays dead however many of its threads were waiting for something.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import sim.nvml
from dra.claims.binding import published_binding
from dra.common.resources import MIG_NODES, NODES, PODS, RESOURCE_CLAIMS, Obj
from dra.gpu.inventory import AllocatorKind, AnswerState, ClaimRef, Inventory
from dra.gpu.names import parse_device
from dra.gpu.reservations import Reservation, ReservedDevice, as_fields
from dra.kube.client.transport import KubeApi
from dra.kube.errors import KubeError, ObjectNotFoundError, UnavailableError
from dra.kube.mirror.store import Change
from kubeletplugin.claims.node import ClaimAnswer
from kubeletplugin.daemon.daemon import Daemon
from kubeletplugin.errors import PluginError
from kubeletplugin.host.options import Options
from kubeletplugin.host.roots import Roots
from kubeletplugin.nvml.errors import NvmlError
from kubeletplugin.telemetry.telemetry import Telemetry
from sim.nvml.machine import GpuSpec, Machine
from sim.nvml.variants import OTHERS, Variants
from tests.failures.daemonpods import NAMESPACE, run_pods
from tests.failures.folderapi import FolderHttp
from tests.failures.steps import KilledError, Step, StepRecorder

T = TypeVar("T")
DRIVER = "mig.dra.dev"
NODE = "node-1"
_ROUNDS = 12000
_ROUND_SECONDS = 0.05
WITHIN_SECONDS = 300.0
"""For what kubelet asks, on a busy machine; its own deadline has tests of its own."""

A100 = "A100-SXM4-40GB"


@dataclass(frozen=True, slots=True)
class Site:
    """The node's folder: hardware, host, state, CDI specs, and the API's objects.

    ``idle_seconds`` is the program's option. With ``layouts`` the node has the directory of
    classes of nodes, with ``mps`` the daemons of claims.
    """

    root: Path
    idle_seconds: float = 0.0
    layouts: bool = False
    mps: bool = False

    @classmethod
    def create(
        cls,
        root: Path,
        *,
        gpus: int = 2,
        variant: str = "",
        idle_seconds: float = 0.0,
        layouts: str = "",
        whole: int = 0,
        mps: bool = False,
    ) -> Site:
        """A node that has just been put up; its driver behaves in one of the OTHERS' ways.

        The last ``whole`` of its GPUs are not in MIG mode.
        """
        variants = OTHERS[variant] if variant else Variants()
        specs = [GpuSpec(A100, mig=number < gpus - whole) for number in range(gpus)]
        Machine.create(root / "hw", specs, variants=variants)
        site = cls(root, idle_seconds, bool(layouts), mps)
        if layouts:
            (root / "classes").mkdir()
            (root / "classes/config.yaml").write_text(layouts)
        site.api().create(NODES, {"metadata": {"name": NODE}})
        return site

    @property
    def machine(self) -> Machine:
        """The hardware."""
        return Machine(self.root / "hw")

    @property
    def roots(self) -> Roots:
        """Where the program finds everything."""
        return Roots(
            host=self.root / "hw/host",
            driver=Path("/"),
            cdi=self.root / "cdi",
            kubelet=self.root / "k",
            state=self.root / "state",
        )

    @property
    def daemons(self) -> Path:
        """The folder of the files that MPS daemons of claims have."""
        return self.roots.state / "mps"

    def api(self, reach: Callable[[str, str], None] | None = None) -> KubeApi:
        """The API server's clients."""
        return KubeApi(FolderHttp(self.root / "api", reach=reach))

    def declare(self, layout: str) -> None:
        """The Node gets the label that chooses a layout."""
        labels = {"nvidia.com/mig.config": layout}
        self.api().patch(NODES, NODE, {"metadata": {"labels": labels}})

    def claim(
        self,
        name: str,
        devices: Sequence[str],
        *,
        awaited: bool = False,
        config: Sequence[Obj] = (),
    ) -> ClaimRef:
        """A claim that was given these devices, one request each, with ``config``.

        ``awaited``: kube-scheduler binds its pod only once they are made.
        """
        body = {"metadata": {"name": name, "namespace": "default"}}
        status = _given(name, devices)
        status["allocation"]["devices"] |= {"config": [*config]} if config else {}
        for result in status["allocation"]["devices"]["results"] if awaited else ():
            result.update(published_binding())
        made = self.api().create(RESOURCE_CLAIMS, {**body, "status": status})
        return ClaimRef("default", name, made["metadata"]["uid"])

    def allocate(self, ref: ClaimRef, devices: Sequence[str]) -> None:
        """Give devices to a claim that has none."""
        api, body = self.api(), {"status": _given(ref.name, devices)}
        api.patch(RESOURCE_CLAIMS, ref.name, body, namespace=ref.namespace, subresource="status")

    def reserve(self, ref: ClaimRef, devices: Sequence[str]) -> None:
        """Have devices made for a claim that is not allocated; without any, no more."""
        fields = as_fields([self.reservation(ref, devices)] if devices else [])
        self.api().patch(MIG_NODES, NODE, {"spec": {"reservations": fields or None}})

    def reservation(self, ref: ClaimRef, devices: Sequence[str]) -> Reservation:
        """A reservation of devices for a claim."""
        uuids = [g.uuid for g in self.machine.state().gpus]
        reserved = tuple(
            ReservedDevice(d, uuids[parse_device(d).minor], f"r{i}") for i, d in enumerate(devices)
        )
        return Reservation(f"reservation-{ref.uid}", ref, reserved, 3600)

    def delete_claim(self, ref: ClaimRef) -> None:
        """The claim is gone; that it is gone already is fine."""
        try:
            self.api().delete(RESOURCE_CLAIMS, ref.name, namespace=ref.namespace, uid=ref.uid)
        except KubeError:
            return

    def unreserve(self, ref: ClaimRef) -> None:
        """No pod is to use it any more; its allocation stays."""
        api, body = self.api(), {"status": {"reservedFor": None}}
        api.patch(RESOURCE_CLAIMS, ref.name, body, namespace=ref.namespace, subresource="status")

    def use(self, ref: ClaimRef) -> None:
        """A pod is to use it."""
        api, body = self.api(), {"status": {"reservedFor": [_user(ref.name)]}}
        api.patch(RESOURCE_CLAIMS, ref.name, body, namespace=ref.namespace, subresource="status")

    def status(self, ref: ClaimRef) -> Obj:
        """Status of a claim as the API has it."""
        found = self.api().get(RESOURCE_CLAIMS, ref.name, namespace=ref.namespace)
        status: Obj = found["status"]
        return status

    def deallocate(self, ref: ClaimRef) -> None:
        """The allocation is taken back, as no pod uses it."""
        status = {"allocation": None, "reservedFor": None}
        api, body = self.api(), {"status": status}
        api.patch(RESOURCE_CLAIMS, ref.name, body, namespace=ref.namespace, subresource="status")

    def has_claim(self, ref: ClaimRef) -> bool:
        """Whether the claim itself is in the API."""
        try:
            found = self.api().get(RESOURCE_CLAIMS, ref.name, namespace=ref.namespace)
        except ObjectNotFoundError:
            return False
        return bool(found["metadata"]["uid"] == ref.uid)

    def save(self, place: Path) -> None:
        """Keep a copy of everything."""
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self.root, place, symlinks=True)

    def restore(self, place: Path) -> None:
        """Everything as it was when it was saved."""
        shutil.rmtree(self.root)
        shutil.copytree(place, self.root, symlinks=True)


def _given(name: str, devices: Sequence[str]) -> Obj:
    results = [
        {"request": f"r{i}", "driver": DRIVER, "pool": NODE, "device": d}
        for i, d in enumerate(devices)
    ]
    return {
        "allocation": {"devices": {"results": results}},
        "reservedFor": [_user(name)],
    }


def _user(name: str) -> Obj:
    return {"resource": "pods", "name": f"{name}-pod", "uid": str(uuid4())}


class Plant:
    """The parts of one process of the node program."""

    def __init__(self, site: Site, recorder: StepRecorder) -> None:
        self.site = site
        self.recorder = recorder
        self.api_down = False
        self.events: list[tuple[str, str]] = []
        self.daemon: Daemon = self.run(self._build)

    def _build(self) -> Daemon:
        with self.recorder.outside():
            sim.nvml.install(self.site.machine.directory)
        options = Options(
            NODE,
            DRIVER,
            None,
            AllocatorKind.CONTROLLER,
            self.site.roots,
            idle_seconds=self.site.idle_seconds,
            node_classes=self.site.root / "classes" if self.site.layouts else None,
            mps_image="registry.example.com/plugin:1" if self.site.mps else "",
            mps_namespace=NAMESPACE,
        )
        daemon = Daemon(options, _RecordedApi(self).api, Telemetry())
        daemon.claims.layouts.grace = 0.0
        # Sent from a thread of their own, and a courtesy: kept here.
        daemon.common.events.emit = self._emit  # type: ignore[method-assign]
        # Its thread gathers changes for a moment; here they are told of as they come.
        daemon.common.changed.thread.notify = daemon.common.changed.tell  # type: ignore[method-assign]
        # A call that hangs then hangs its claim's thread; the deadline of calls has its own tests.
        daemon.gpus.hardware.session._calls.run = _at_once  # type: ignore[method-assign]
        daemon.gpus.hardware.session._calls.together = _all_at_once  # type: ignore[method-assign]
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
        loop = self.daemon.gpus.loop
        try:
            loop._step()
        except (NvmlError, PluginError) as error:
            loop._unavailable(str(error))

    def heed_labels(self) -> None:
        """Read the Node, and do what its labels say."""
        self.run(self.daemon.gpus.node_watch.look)
        self.look()

    def tend(self) -> None:
        """A round of the janitor, in which it asks for every claim."""
        self.run(lambda: self.daemon.claims.janitor.tend(everything=True))

    def publish(self) -> None:
        """Write the statuses of claims and the MigNode, as far as the API answers."""
        self.run(self._publish)

    def _publish(self) -> None:
        self.daemon.gpus.looks.run()
        statuses = self.daemon.publishing.statuses
        while statuses._wanted:
            wanted = statuses._wanted.pop(next(iter(statuses._wanted)))
            _try(lambda: statuses._apply(wanted.ref, wanted.wish))  # noqa: B023 - called at once
        _try(self.daemon.publishing.slices._publish)
        _try(self.daemon.publishing.mignode._publish)

    def prepare(self, ref: ClaimRef, *, within: float = WITHIN_SECONDS) -> ClaimAnswer:
        """What kubelet asks for one claim."""
        node = self.daemon.claims.node
        return self.run(lambda: node.prepare(ref, deadline=node._clock() + within))

    def unprepare(self, ref: ClaimRef, *, within: float = WITHIN_SECONDS) -> ClaimAnswer:
        """What kubelet asks when the last pod of a claim is gone."""
        node = self.daemon.claims.node
        return self.run(lambda: node.unprepare(ref, deadline=node._clock() + within))

    def make_ahead(
        self, ref: ClaimRef, devices: Sequence[str], *, hung: Collection[str] = ()
    ) -> None:
        """Have the slices of a claim made before kubelet asks for them, if it is allocated here.

        ``hung`` are UIDs of claims that are not waited for.
        """
        self.run(lambda: self.daemon.claims.eager.expect(ref, tuple(devices)))
        self.eager_round(hung=hung)

    def watch(self, ref: ClaimRef, *, hung: Collection[str] = ()) -> None:
        """The work that the watch of this node's claims gives: slices to make, or to give back.

        ``hung`` are UIDs of claims that are not waited for.
        """
        claims = self.daemon.claims
        assert claims.claim_watch is not None
        watch = claims.claim_watch
        found = self.site.api().get(RESOURCE_CLAIMS, ref.name, namespace=ref.namespace)
        self.run(lambda: watch._changed(Change("added", None, found)))
        self.eager_round(hung=hung)

    def take_reservations(
        self, *reserved: Reservation, hung: Collection[str] = ()
    ) -> dict[str, AnswerState]:
        """Make what is reserved, and give back what is no more; the answers by reservation."""
        self.run(lambda: self.daemon.claims.reservations.take(reserved))
        self.eager_round(hung=hung)
        answers = self.run(self.daemon.claims.reservations.answers)
        return {answer.id: answer.state for answer in answers}

    def read_reservations(self) -> None:
        """Make what is reserved in the MigNode, and give back what is no more."""
        self.run(self.daemon.publishing.mignode.look)
        self.eager_round()

    def eager_round(self, *, hung: Collection[str] = ()) -> None:
        """Make ahead, and give back, what is to be."""
        self.run(lambda: self._eager_round(hung))

    def _eager_round(self, hung: Collection[str]) -> None:
        for _ in range(2):  # what is given back is made after it
            self.daemon.claims.eager._turn()
            running = {**self.daemon.claims.tasks._running}
            awaited = [future for uid, (_, future) in running.items() if uid not in hung]
            assert not wait(awaited, timeout=WITHIN_SECONDS).not_done, "work that does not end"

    def give_up_idle(self) -> None:
        """Remove what is kept for other claims, as at an orderly end."""
        self.run(self.daemon.claims.janitor.give_up_idle)

    def inventory(self) -> Inventory | None:
        """What would be published."""
        return self.run(self.daemon.publishing.inventory.known)


class _RecordedApi:
    """The API as the program reaches it: its writes are steps, and it may be down."""

    def __init__(self, plant: Plant) -> None:
        self._plant = plant
        self._http = FolderHttp(plant.site.root / "api")
        self.api = KubeApi(_Recording(self._http, self._call))

    def _call(self, method: str, path: str, **more: Any) -> Any:
        plant = self._plant
        if plant.api_down:
            raise UnavailableError(f"{method} {path}: connection refused")
        if method == "GET":
            with plant.recorder.outside():
                return self._http.call(method, path, **more)
        step = Step("api", method, path)
        return plant.recorder.step(step, lambda: self._change(method, path, **more))

    def _change(self, method: str, path: str, **more: Any) -> Any:
        answer = self._http.call(method, path, **more)
        if f"/{PODS.plural}" in path:
            run_pods(self._plant.site.api(), self._plant.site.daemons)
        return answer


class _Recording(FolderHttp):
    def __init__(self, http: FolderHttp, call: Callable[..., Any]) -> None:
        super().__init__(http._folder)
        self._recorded = call

    def call(self, method: str, path: str, **more: Any) -> Any:
        return self._recorded(method, path, **more)


def _at_once(name: str, work: Callable[[], T], **_: Any) -> T:
    return work()


def _all_at_once(work: Callable[[], T], *, gpu: str) -> T:
    return work()


def _try(work: Callable[[], Any]) -> None:
    try:
        work()
    except KubeError:
        return
