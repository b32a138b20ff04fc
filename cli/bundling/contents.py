"""Contents of a support bundle: the files, read one after the other and bounded in bytes."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import yaml

from cli.bundling import redaction
from cli.explaining.facts import CONTROLLER, PLUGIN, is_component
from cli.shell.exits import CliError
from cli.shell.output import Output
from cli.shell.session import Session
from dra.common.resources import (
    CUSTOM_RESOURCE_DEFINITIONS,
    DEVICE_CLASSES,
    EVENTS,
    LEASES,
    MIG_NODES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Obj,
    Resource,
    at,
)
from dra.kube.errors import KubeError

Command = Callable[[Session], int]
"""A command of kubectl mig, whose output goes into the bundle."""

LOG_BYTES = 4 * 2**20
"""Upper bound of one container's log, which has its newest 20,000 lines."""
_LOG_LINES = 20_000
_METRICS_BYTES = 2**20
_METRICS = "metrics"
"""Name of the port in the chart's pods."""


@dataclass(frozen=True, slots=True)
class File:
    """A file of the bundle."""

    name: str
    content: bytes


@dataclass(slots=True)
class Contents:
    """Reads everything for one bundle. ``missing`` says what could not be read, and why."""

    session: Session
    commands: dict[str, Command]
    missing: list[str] = field(default_factory=list)

    def files(self) -> Iterator[File]:
        """The files. Nothing that fails ends it: the failure is noted in ``missing``.

        Raises:
            UnavailableError: the server does not answer at all.
        """
        version = self.session.api.read("/version")
        yield File("version.json", json.dumps(version, indent=2).encode())
        for name, command in self.commands.items():
            yield from self._noted(name, partial(self._output, name, command))
        pods = self._list(PODS)
        ours = [p for p in pods if _is_ours(p)]
        claimants = [p for p in pods if at(p, "spec", "resourceClaims") and not _is_ours(p)]
        yield _objects("driver-pods.yaml", [redaction.pod(p, whole=True) for p in ours])
        yield _objects("pods.yaml", [redaction.pod(p) for p in claimants])
        yield _objects("nodes.yaml", [redaction.node(n) for n in self._list(NODES)])
        driver = self.session.driver
        for resource in (RESOURCE_CLAIMS, DEVICE_CLASSES):
            found = [redaction.claim(c, driver) for c in self._list(resource)]
            yield _objects(f"{resource.plural}.yaml", found)
        for resource in (MIG_NODES, RESOURCE_SLICES, CUSTOM_RESOURCE_DEFINITIONS, LEASES):
            found = [redaction.plain(o) for o in self._list(resource) if _is_about(o, driver)]
            yield _objects(f"{resource.plural}.yaml", found)
        events = [redaction.event(e) for e in self._list(EVENTS) if _is_about(e, driver)]
        yield _objects("events.yaml", events)
        for each in ours:
            yield from self._of_pod(each)

    def _list(self, resource: Resource) -> list[Obj]:
        try:
            return self.session.api.list(resource).items
        except KubeError as error:
            self.missing.append(f"{resource}: {error}")
            return []

    def _output(self, name: str, command: Command) -> bytes:
        stream = io.StringIO()
        out = Output(stream, form="json" if name.endswith(".json") else "wide", color=False)
        command(replace(self.session, out=out))
        return stream.getvalue().encode()

    def _of_pod(self, pod: Obj) -> Iterator[File]:
        metadata = pod["metadata"]
        where = PODS.path(metadata["namespace"], metadata["name"])
        query = {"tailLines": str(_LOG_LINES), "limitBytes": str(LOG_BYTES), "timestamps": "true"}
        ports = [p for c in at(pod, "spec", "containers") for p in at(c, "ports")]
        for container in at(pod, "spec", "containers"):
            for previous in ("", "true") if _has_restarted(pod, container) else ("",):
                asked = query | {"container": container["name"], "previous": previous}
                suffix = ".previous" if previous else ""
                name = f"logs/{metadata['name']}-{container['name']}{suffix}.log"
                read = partial(self._text, f"{where}/log", query=asked, limit=LOG_BYTES)
                yield from self._noted(name, read)
        for port in (p["containerPort"] for p in ports if p.get("name") == _METRICS):
            path = f"{where}:{port}/proxy/metrics"
            read = partial(self._text, path, query={}, limit=_METRICS_BYTES)
            yield from self._noted(f"metrics/{metadata['name']}.txt", read)

    def _text(self, path: str, *, query: dict[str, str], limit: int) -> bytes:
        raw = self.session.api.text(path, query=query, limit_bytes=limit)
        return redaction.log(raw.decode(errors="replace")).encode()

    def _noted(self, name: str, read: Callable[[], bytes]) -> Iterator[File]:
        try:
            content = read()
        except (KubeError, CliError) as error:
            self.missing.append(f"{name}: {error}")
        else:
            yield File(name, content)


def _is_ours(pod: Obj) -> bool:
    return is_component(pod, CONTROLLER) or is_component(pod, PLUGIN)


def _has_restarted(pod: Obj, container: Obj) -> bool:
    statuses = at(pod, "status", "containerStatuses")
    return any(s["name"] == container["name"] and s.get("restartCount") for s in statuses)


def _is_about(obj: Obj, driver: str) -> bool:
    """True if the driver made the object or it is about the driver."""
    return driver in json.dumps(
        [
            at(obj, "metadata", "name", default=""),
            at(obj, "spec", "driver", default=""),
            at(obj, "spec", "group", default=""),
            at(obj, "reportingComponent", default=""),
            at(obj, "source", "component", default=""),
            at(obj, "apiVersion", default=""),
        ]
    )


def _objects(name: str, found: list[Any]) -> File:
    return File(name, yaml.safe_dump_all(found, sort_keys=False).encode())
