"""Pods of one node: started once their claims are prepared, shown in their status, ended."""

from __future__ import annotations

import json
import logging
import random
import re
import shutil
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dra.common.resources import PODS, Obj, at
from dra.kube.client import KubeApi
from dra.kube.errors import ConflictError, ObjectNotFoundError
from dra.kube.events import EventRecorder
from dra.kube.reflector import Change, Reflector
from dra.kube.timing import rfc3339
from sim.daemon import WorkQueue
from sim.kubelet.claims import ClaimManager
from sim.kubelet.containers import container_view, log_text, resolve
from sim.kubelet.plugins import ClaimError, ContainerError

_SLEEP = re.compile(r"\bsleep +(\d+(?:\.\d+)?)(?=[\s;&]|$)")
TERMINAL = frozenset({"Succeeded", "Failed"})


def is_terminal(pod: Obj) -> bool:
    """True if the pod has ended for good."""
    return at(pod, "status", "phase") in TERMINAL


def is_deleting(pod: Obj) -> bool:
    """True if somebody deleted the pod."""
    return "deletionTimestamp" in pod["metadata"]


def pending(pod: Obj, now: datetime, *, waiting: Mapping[str, str] | None = None) -> Obj:
    """Not started; ``waiting`` is ``{reason, message}`` of every container's state."""
    state = {"waiting": dict(waiting or {"reason": "ContainerCreating"})}
    return _status(pod, "Pending", now, states={"containers": state, "init": state})


def running(pod: Obj, now: datetime, *, ip: str) -> Obj:
    """All containers run, all init containers are done."""
    at = rfc3339(now)
    states = {
        "containers": {"running": {"startedAt": at}},
        "init": {"terminated": _terminated(at, at, code=0)},
    }
    return _status(pod, "Running", now, states=states) | {"podIP": ip, "podIPs": [{"ip": ip}]}


def terminated(pod: Obj, now: datetime, *, code: int = 143) -> Obj:
    """The containers were told to end, ``Failed``; ``Succeeded`` with ``code`` 0."""
    started = started_at(pod)
    state = _terminated(rfc3339(started) if started else "", rfc3339(now), code=code)
    states = {"containers": {"terminated": state}, "init": {"terminated": state}}
    return _status(pod, "Failed" if code else "Succeeded", now, states=states)


def seconds_of(pod: Obj) -> float | None:
    """Seconds until a pod ends by itself; None of one that runs until somebody deletes it.

    No program runs: a pod that is not to be started again ends after the seconds that its commands
    ``sleep``, if all of its containers do.
    """
    if pod["spec"].get("restartPolicy", "Always") == "Always":
        return None
    lengths = []
    for container in pod["spec"].get("containers", ()):
        words = " ".join([*container.get("command", ()), *container.get("args", ())])
        lengths.append(sum(map(float, _SLEEP.findall(words))))
    return max(lengths) if lengths and all(lengths) else None


def started_at(pod: Obj) -> datetime | None:
    """Starts of the first container, None when none runs."""
    for status in at(pod, "status", "containerStatuses"):
        if started := at(status, "state", "running", "startedAt"):
            return datetime.fromisoformat(started)
    return None


def _terminated(start: str, end: str, *, code: int) -> Obj:
    state: Obj = {"exitCode": code, "reason": "Error" if code else "Completed", "finishedAt": end}
    if start:
        state["startedAt"] = start
    return state


def _status(pod: Obj, phase: str, now: datetime, *, states: Mapping[str, Any]) -> Obj:
    up = phase == "Running"
    done = phase in TERMINAL
    not_ready = "PodCompleted" if done else "ContainersNotReady"
    conditions = {
        "PodReadyToStartContainers": (up, ""),
        "Initialized": (up or done, "" if up or done else "ContainersNotInitialized"),
        "ContainersReady": (up, "" if up else not_ready),
        "Ready": (up, "" if up else not_ready),
    }
    status: Obj = {
        "phase": phase,
        "conditions": [
            _condition(pod, kind, now, true=true, reason=reason)
            for kind, (true, reason) in conditions.items()
        ],
        "containerStatuses": _containers(
            pod["spec"].get("containers", ()), states["containers"], up=up
        ),
        "startTime": at(pod, "status", "startTime") or rfc3339(now),
    }
    if init := pod["spec"].get("initContainers"):
        status["initContainerStatuses"] = _containers(init, states["init"], up=up)
    return status


def _condition(pod: Obj, kind: str, now: datetime, *, true: bool, reason: str) -> Obj:
    status = "True" if true else "False"
    old = next((c for c in at(pod, "status", "conditions") if c["type"] == kind), None)
    same = old is not None and old["status"] == status
    return {
        "type": kind,
        "status": status,
        "reason": reason or None,
        "lastProbeTime": None,
        "lastTransitionTime": old["lastTransitionTime"] if old and same else rfc3339(now),
    }


def _containers(containers: Any, state: Mapping[str, Any], *, up: bool) -> list[Obj]:
    return [
        {
            "name": container["name"],
            "image": container.get("image", ""),
            "imageID": "",
            "restartCount": 0,
            "ready": up,
            "started": up,
            "state": dict(state),
        }
        for container in containers
    ]


_log = logging.getLogger(__name__)

_WORKERS = 8
_QUICK_RETRY_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Retries:
    """Pauses of kubelet before it tries again.

    ``prepare`` seconds after a failed NodePrepareResources, ``quick`` after a failed
    NodeUnprepareResources or container; both are lengthened by up to a half, at random.
    """

    prepare: float = 60.0
    quick: float = _QUICK_RETRY_SECONDS

    def after_prepare(self) -> float:
        """Seconds until the next NodePrepareResources."""
        return random.uniform(self.prepare, 1.5 * self.prepare)

    def after_other(self) -> float:
        """Seconds until the next try of anything else."""
        quick = min(self.quick, self.prepare)
        return random.uniform(quick, 1.5 * quick)


class PodRunner:
    """Runs the pods that are bound to ``node``, several at a time, each one step after the other.

    What each container sees is in ``<root>/pods/<uid>/containers/<name>.json`` while the pod is on
    the node.
    """

    def __init__(  # noqa: PLR0913 - what a pod touches
        self,
        api: KubeApi,
        node: str,
        claims: ClaimManager,
        *,
        root: Path,
        cdi_root: Path,
        retries: Retries,
    ) -> None:
        self._api = api
        self._claims = claims
        self._root = root
        self._retries = retries
        self._cdi_root = cdi_root
        self._events = EventRecorder(api, component="kubelet", host=node)
        self._lock = threading.Lock()
        self._pods: dict[str, Obj] = {}
        self._started: dict[str, datetime | None] = {}
        self._queue = WorkQueue("pod", self._sync, workers=_WORKERS, first_retry=1.0)
        self._reflector = Reflector(
            api, PODS, field_selector=f"spec.nodeName={node}", on_event=self._changed
        )

    def start(self) -> None:
        """Begins to follow the node's pods."""
        self._queue.start()
        self._reflector.start()

    def stop(self) -> None:
        """Stops; pods, claims and files stay as they are, as after a stop of kubelet."""
        self._reflector.stop()
        self._queue.stop()
        self._events.close()

    def active(self) -> list[Obj]:
        """The pods that have not ended."""
        with self._lock:
            return [pod for pod in self._pods.values() if not is_terminal(pod)]

    def log(self, namespace: str, name: str, container: str) -> str:
        """The log of a container.

        Raises:
            LookupError: it is not on this node or has not started; kubelet's words.
        """
        with self._lock:
            found = [p for p in self._pods.values() if _name(p) == f"{namespace}/{name}"]
        if not found:
            raise LookupError(f'pod "{name}" does not exist')
        path = self._folder(found[0]["metadata"]["uid"]) / "containers" / f"{container}.json"
        if not path.exists():
            raise LookupError(
                f'container "{container}" in pod "{name}" is waiting to start: ContainerCreating'
            )
        return log_text(json.loads(path.read_text()))

    def _changed(self, change: Change) -> None:
        pod = change.new or change.old
        if pod is None:
            return
        uid = pod["metadata"]["uid"]
        with self._lock:
            if change.kind == "deleted":
                self._pods.pop(uid, None)
            else:
                self._pods[uid] = pod
        if change.old is None or change.new is None or _differs(change.old, change.new):
            self._queue.add(uid)

    def _sync(self, uid: str) -> float | None:
        with self._lock:
            pod = self._pods.get(uid)
            if pod is not None and uid not in self._started:
                # A pod that runs already when kubelet starts is not started again.
                self._started[uid] = started_at(pod)
            started = self._started.get(uid)
        if pod is None:
            return self._forget(uid)
        try:
            if is_deleting(pod) or is_terminal(pod):
                return self._end(pod)
            if started is None:
                return self._start(pod)
            seconds = seconds_of(pod)
            if seconds is None:
                return None
            left = seconds - (_now() - started).total_seconds()
            return left if left > 0 else self._end(pod, code=0)
        except ObjectNotFoundError:
            return None

    def _start(self, pod: Obj) -> float | None:
        uid = pod["metadata"]["uid"]
        if not at(pod, "status", "containerStatuses"):
            pod = self._write(pod, pending(pod, _now()))
        try:
            self._claims.prepare(pod)
        except ClaimError as error:
            message = f"Failed to prepare dynamic resources: {error}"
            _log.warning("pod %s: %s", _name(pod), message)
            self._events.emit(pod, "FailedPrepareDynamicResources", message, warning=True)
            return self._retries.after_prepare()
        try:
            self._create_containers(pod)
        except ContainerError as error:
            _log.warning("pod %s: %s", _name(pod), error)
            self._events.emit(pod, "Failed", f"Error: {error}", warning=True)
            waiting = {"reason": "CreateContainerError", "message": str(error)}
            self._write(pod, pending(pod, _now(), waiting=waiting))
            return self._retries.after_other()
        started = _now()
        pod = self._write(pod, running(pod, started, ip="127.0.0.1"))
        with self._lock:
            self._started[uid] = started
        _log.info("pod %s runs", _name(pod))
        return seconds_of(pod)

    def _create_containers(self, pod: Obj) -> None:
        folder = self._folder(pod["metadata"]["uid"]) / "containers"
        folder.mkdir(parents=True, exist_ok=True)
        spec = pod["spec"]
        for container in (*spec.get("initContainers", ()), *spec.get("containers", ())):
            ids = self._claims.cdi_ids(pod, container)
            view = container_view(container, ids, resolve(self._cdi_root, ids))
            (folder / f"{container['name']}.json").write_text(json.dumps(view, indent=2) + "\n")

    def _end(self, pod: Obj, *, code: int = 143) -> float | None:
        """Unprepares, then the terminal status, then the deletion: kubelet's order."""
        metadata = pod["metadata"]
        try:
            self._claims.unprepare(metadata["uid"])
        except ClaimError as error:
            _log.warning("pod %s cannot end: %s", _name(pod), error)
            message = f"Failed to unprepare dynamic resources: {error}"
            self._events.emit(pod, "FailedUnprepareDynamicResources", message, warning=True)
            return self._retries.after_other()
        if not is_terminal(pod):
            pod = self._write(pod, terminated(pod, _now(), code=code))
            _log.info("pod %s ended", _name(pod))
        if is_deleting(pod):
            try:
                self._api.delete(
                    PODS,
                    metadata["name"],
                    namespace=metadata["namespace"],
                    uid=metadata["uid"],
                    grace_seconds=0,
                )
            except ConflictError:
                return None
        return None

    def _forget(self, uid: str) -> float | None:
        """Gives up what is left of a pod that is gone, also behind kubelet's back."""
        try:
            self._claims.unprepare(uid)
        except ClaimError as error:
            _log.warning("claims of vanished pod %s: %s", uid, error)
            return self._retries.after_other()
        with self._lock:
            self._started.pop(uid, None)
        shutil.rmtree(self._folder(uid), ignore_errors=True)
        return None

    def _write(self, pod: Obj, status: Obj) -> Obj:
        metadata = pod["metadata"]
        body = {"metadata": {"uid": metadata["uid"]}, "status": status}
        return self._api.patch(
            PODS,
            metadata["name"],
            body,
            namespace=metadata["namespace"],
            subresource="status",
            content="strategic",
        )

    def _folder(self, uid: str) -> Path:
        return self._root / "pods" / uid


def _differs(old: Obj, new: Obj) -> bool:
    """True if a pod changed in what makes kubelet look at it again; status alone does not."""
    fields = ("labels", "annotations", "deletionTimestamp", "deletionGracePeriodSeconds")
    return old["spec"] != new["spec"] or any(
        old["metadata"].get(f) != new["metadata"].get(f) for f in fields
    )


def _now() -> datetime:
    return datetime.now(UTC)


def _name(pod: Obj) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
