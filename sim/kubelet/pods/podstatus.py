"""The status that kubelet writes for a pod in each stage of its life, as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from dra.common.resources import Obj, at
from dra.kube.timing import rfc3339

TERMINAL = frozenset({"Succeeded", "Failed"})
_TERMINATED_BY_SIGNAL = 143


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


def ended(pod: Obj, now: datetime, *, phase: str) -> Obj:
    """``Succeeded``: every container exited with 0. ``Failed``: they were terminated."""
    code = 0 if phase == "Succeeded" else _TERMINATED_BY_SIGNAL
    started = started_at(pod)
    terminated = _terminated(rfc3339(started) if started else "", rfc3339(now), code=code)
    states = {"containers": {"terminated": terminated}, "init": {"terminated": terminated}}
    return _status(pod, phase, now, states=states)


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
