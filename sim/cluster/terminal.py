"""Views of the cluster for people: text in colour where it is wanted, and what happens in it."""

from __future__ import annotations

import json
import os
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TextIO

from dra.claims.claims import claim_names
from dra.common.resources import EVENTS, PODS, RESOURCE_CLAIMS, Obj, at
from dra.gpu.inventory import ClaimRef
from dra.gpu.placement_map import Style
from dra.kube.reflector import Change, Reflector
from sim.cluster.processes import ClusterError

if TYPE_CHECKING:
    from sim.cluster.cluster import Cluster

_WIDTH = 92
_BOLD, _GREEN, _YELLOW, _RED = "1", "32", "33", "31"


def _wrap(text: str, width: int) -> list[str]:
    """Lines that leave names with hyphens whole."""
    return textwrap.wrap(text, width, break_on_hyphens=False) or [""]


class Terminal:
    """Writes to a stream; colours on a terminal, unless NO_COLOR is set or TERM is dumb."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.style = Style.of(stream, os.environ)

    def line(self, text: str = "") -> None:
        """One line as it is."""
        if self.style.ascii_only:
            text = text.encode("ascii", "replace").decode()
        self._stream.write(text + "\n")
        self._stream.flush()

    def block(self, text: str, *, indent: str = "  ") -> None:
        """Several lines, indented."""
        for line in text.splitlines():
            self.line(indent + line)

    def heading(self, text: str) -> None:
        """The start of a part."""
        self.line()
        self.line(self._paint(text, _BOLD))

    def say(self, text: str, *, indent: str = "  ") -> None:
        """A sentence, wrapped."""
        for line in _wrap(text, _WIDTH - len(indent)):
            self.line(indent + line)

    def term(self, name: str, text: str) -> None:
        """A name and what is to be said about it, in two columns."""
        lines = _wrap(text, _WIDTH - 14)
        self.line(f"  {self._paint(f'{name:<11}', _BOLD)} {lines[0]}")
        for line in lines[1:]:
            self.line(" " * 14 + line)

    def good(self, text: str) -> None:
        """Something holds."""
        self.line("  " + self._paint("ok", _GREEN) + "  " + text)

    def waits(self, text: str) -> None:
        """Something waits."""
        self.line(self._paint(text, _YELLOW))

    def bad(self, text: str) -> None:
        """Something does not hold."""
        first, _, rest = text.partition("\n")
        self.line(self._paint(first, _RED))
        if rest:
            self.line(rest)

    def _paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.style.color else text


_SHOWN_MOUNTS = 2


def cdi_excerpt(spec: Mapping[str, Any]) -> str:
    """A CDI spec in few lines: every device node and variable, the first mounts."""
    lines = [f"kind: {spec['kind']}"]
    for device in spec["devices"]:
        lines.append(f"device {device['name']}")
        lines += _edits(device.get("containerEdits", {}))
    if common := [*_edits(spec.get("containerEdits", {}))]:
        lines += ["every device of this spec", *common]
    return "\n".join(lines)


def container_excerpt(view: Mapping[str, Any]) -> str:
    """View of a container in few lines; ``view`` is the kubelet stand-in's file."""
    edits = {
        "env": [f"{name}={value}" for name, value in view["env"].items()],
        "deviceNodes": view["devices"],
        "mounts": view["mounts"],
    }
    return "\n".join([f"container {view['name']}", *_edits(edits)])


def device_data(claim: Mapping[str, Any]) -> str:
    """``status.devices`` of a claim: each device with its condition and its data."""
    lines = []
    for device in at(claim, "status", "devices"):
        conditions = ", ".join(
            f"{c['type']}={c['status']} ({c.get('reason', '')})"
            for c in device.get("conditions", ())
        )
        lines.append(f"{device['pool']}/{device['device']}: {conditions}")
        data = device.get("data") or {}
        lines += [f"  {name}: {_value(value)}" for name, value in data.items()]
    return "\n".join(lines)


def _edits(edits: Mapping[str, Any]) -> Iterable[str]:
    for assignment in edits.get("env") or ():
        yield f"  env    {assignment}"
    for node in edits.get("deviceNodes") or ():
        numbers = f"{node.get('type', '?')} {node.get('major', '?')}:{node.get('minor', '?')}"
        yield f"  device {node['path']:<34} {numbers}"
    mounts = edits.get("mounts") or ()
    for mount in mounts[:_SHOWN_MOUNTS]:
        yield f"  mount  {mount['containerPath']}"
    if len(mounts) > _SHOWN_MOUNTS:
        yield f"  mount  ... and {len(mounts) - _SHOWN_MOUNTS} more files of the driver"


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


_LOOK_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Placement:
    """Place of a running pod's slices."""

    pod: str
    node: str
    devices: tuple[str, ...]
    seconds: float


class NamespaceObserver:
    """Mirrors pods and claims while used as a context manager.

    ``on_running`` is called, in the thread that waits, once for each pod that runs.
    """

    def __init__(
        self, cluster: Cluster, namespace: str, on_running: Callable[[Placement], None]
    ) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._on_running = on_running
        self._changed = threading.Event()
        self._pods = Reflector(cluster.api, PODS, namespace=namespace, on_event=self._note)
        self._claims = Reflector(
            cluster.api, RESOURCE_CLAIMS, namespace=namespace, on_event=self._note
        )
        self._created: dict[str, float] = {}
        self._reported: set[str] = set()

    def __enter__(self) -> Self:
        self._pods.start()
        self._claims.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._pods.stop()
        self._claims.stop()

    def phases(self) -> dict[str, str]:
        """Pod to phase."""
        pods = self._pods.store.list()
        return {p["metadata"]["name"]: at(p, "status", "phase", default="") for p in pods}

    def pod(self, name: str) -> Obj | None:
        """A pod as last seen."""
        return self._pods.store.get(name, self._namespace)

    def claims(self) -> list[Obj]:
        """All claims as last seen."""
        return self._claims.store.list()

    def claim_of(self, pod_name: str) -> Obj | None:
        """The first claim of a pod."""
        pod = self.pod(pod_name)
        for name in claim_names(pod).values() if pod else ():
            if name is not None and (claim := self._claims.store.get(name, self._namespace)):
                return claim
        return None

    def owner(self, claim: ClaimRef) -> str:
        """The pods that use a claim, for the map."""
        found = self._claims.store.get(claim.name, claim.namespace)
        users = (found or {}).get("status", {}).get("reservedFor", ())
        return ", ".join(user["name"] for user in users) or claim.name

    def reason(self, pod_name: str, component: str) -> str:
        """Last warning of a component about the pod or its claim; "" for none."""
        claim = self.claim_of(pod_name)
        names = {pod_name, claim["metadata"]["name"] if claim else ""}
        found = [
            event
            for event in self._cluster.api.list(EVENTS, namespace=self._namespace).items
            if event["involvedObject"].get("name") in names
            and at(event, "source", "component") == component
            and event.get("type") == "Warning"
        ]
        found.sort(key=lambda e: (e.get("lastTimestamp") or "", e["involvedObject"]["kind"]))
        return str(found[-1]["message"]) if found else ""

    def wait(self, what: str, holds: Callable[[], bool], *, seconds: float) -> None:
        """Waits until ``holds``.

        Raises:
            ClusterError: time is up or a process ended; says what the pods do instead.
        """
        deadline = time.monotonic() + seconds
        while True:
            self._changed.clear()
            self._report()
            if holds():
                return
            self._cluster.supervisor.check()
            if time.monotonic() > deadline:
                raise ClusterError(f"{what}: not so after {seconds:.0f} s.\n{self._describe()}")
            self._changed.wait(_LOOK_SECONDS)

    def _note(self, change: Change) -> None:
        if change.kind == "added" and change.new and change.new["kind"] == "Pod":
            self._created.setdefault(change.new["metadata"]["uid"], time.monotonic())
        self._changed.set()

    def _report(self) -> None:
        for pod in self._pods.store.list():
            uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
            if uid in self._reported or at(pod, "status", "phase") != "Running":
                continue
            claim = self.claim_of(name) or {}
            allocation = at(claim, "status", "allocation", default={})
            results = at(allocation, "devices", "results")
            self._reported.add(uid)
            self._on_running(
                Placement(
                    pod=name,
                    node=pod["spec"]["nodeName"],
                    devices=tuple(result["device"] for result in results),
                    seconds=time.monotonic() - self._created.get(uid, time.monotonic()),
                )
            )

    def _describe(self) -> str:
        lines = []
        for pod in self._pods.store.list():
            name, status = pod["metadata"]["name"], pod.get("status", {})
            lines.append(f"    pod {name} is {status.get('phase')}")
            lines += [
                f"        {condition.get('reason', '')}: {condition['message']}"
                for condition in status.get("conditions", ())
                if condition.get("message")
            ]
        for event in self._cluster.api.list(EVENTS, namespace=self._namespace).items:
            if event.get("type") == "Warning":
                about = event["involvedObject"]
                lines.append(f"    {about['kind']} {about['name']}: {event['message']}")
        lines += [f"    claim {claim['metadata']['name']}" for claim in self.claims()]
        return "\n".join(lines[-40:])
