"""``kubectl mig bundle``: what somebody needs to find out what is wrong, in one file."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from cli import redaction
from cli.commands import doctor
from cli.commands import map as placement_map
from cli.facts import CONTROLLER, PLUGIN, is_component
from cli.output import CliError, Exit, Output, version
from cli.session import Session
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

LOG_BYTES = 4 * 2**20
"""Upper bound on one container's log in bytes; its newest 20,000 lines are taken."""
_LOG_LINES = 20_000
_METRICS_BYTES = 2**20
_METRICS = "metrics"
"""Name of the port in the chart's pods."""

_README = """\
State of dra-driver-nvidia-mig, {time}, kubectl mig {version}.

Left out: labels and annotations of tenants' objects, values of environment variables, commands and
images of tenants' containers, parameters of other drivers, addresses of nodes and pods. Names of
namespaces, pods, claims and nodes are in it, and logs of the driver as they were written, without
what looks like a credential: look through it before you hand it on.

Could not be read:
{missing}
"""

_File = tuple[str, bytes]
"""Name and content of a file of the bundle."""


def run(session: Session, *, file: str | None) -> int:
    """Write the bundle, and print what of it may not be read; returns 0 all the same."""
    now = session.now()
    folder = f"mig-bundle-{now:%Y%m%d-%H%M%S}"
    path = Path(file or f"{folder}.tar.gz")
    if path.exists():
        raise CliError(Exit.USAGE, f"{path} is there already: name another file by --file")
    missing: list[str] = []
    try:
        _write(path, _files(session, missing), folder=folder, seconds=int(now.timestamp()))
    except OSError as error:
        raise CliError(Exit.USAGE, f"{path} cannot be written: {error}; see --file") from error
    if session.out.is_json:
        session.out.json("Bundle", {"file": str(path), "missing": missing})
        return Exit.OK
    session.out.line(f"{path}: {path.stat().st_size / 2**10:.0f} KiB")
    for each in missing:
        session.out.paragraph("  ", "not in it: ", each)
    return Exit.OK


def _write(path: Path, files: Iterable[_File], *, folder: str, seconds: int) -> None:
    """Write ``files`` into a new archive at ``path``, whole, readable by its owner alone.

    ``files``: read one by one while the archive, a compressed tar file, is written. ``folder``:
    name of the one directory in it. ``seconds``: time of every file, since 1970.

    Raises:
        OSError: the archive cannot be written; nothing is left then.
    """
    partly = path.with_name(f".{path.name}.partial")
    try:
        with (
            os.fdopen(os.open(partly, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as raw,
            gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=seconds) as packed,
            tarfile.open(fileobj=packed, mode="w") as archive,
        ):
            for name, content in files:
                entry = tarfile.TarInfo(f"{folder}/{name}")
                entry.size, entry.mtime, entry.mode = len(content), seconds, 0o600
                archive.addfile(entry, io.BytesIO(content))
        partly.rename(path)
    finally:
        partly.unlink(missing_ok=True)


def _files(session: Session, missing: list[str]) -> Iterator[_File]:
    """The files, read one after the other.

    What cannot be read is noted in ``missing``, with the reason.

    Raises:
        UnavailableError: the server does not answer at all.
    """

    def listed(resource: Resource) -> list[Obj]:
        try:
            return session.api.list(resource).items
        except KubeError as error:
            missing.append(f"{resource}: {error}")
            return []

    def noted(name: str, read: Callable[[], bytes]) -> Iterator[_File]:
        try:
            yield name, read()
        except (KubeError, CliError) as error:
            missing.append(f"{name}: {error}")

    yield "version.json", json.dumps(session.api.read("/version"), indent=2).encode()
    yield from noted("doctor.json", partial(_output, session, "json", doctor.run))
    yield from noted("map.txt", partial(_output, session, "wide", placement_map.run))
    driver = session.driver
    pods = listed(PODS)
    ours = [p for p in pods if _is_ours(p)]
    claimants = [p for p in pods if at(p, "spec", "resourceClaims") and not _is_ours(p)]
    yield _objects("driver-pods", (redaction.pod(p, whole=True) for p in ours))
    yield _objects("pods", map(redaction.pod, claimants))
    yield _objects("nodes", map(redaction.node, listed(NODES)))
    for resource in (RESOURCE_CLAIMS, DEVICE_CLASSES):
        yield _objects(resource.plural, (redaction.claim(c, driver) for c in listed(resource)))
    for resource in (MIG_NODES, RESOURCE_SLICES, CUSTOM_RESOURCE_DEFINITIONS, LEASES):
        about = (o for o in listed(resource) if _is_about(o, driver))
        yield _objects(resource.plural, map(redaction.plain, about))
    events = (e for e in listed(EVENTS) if _is_about(e, driver))
    yield _objects("events", map(redaction.event, events))
    for pod in ours:
        for name, path, query, limit in _texts(pod):
            yield from noted(name, partial(_text, session, path, query, limit))
    told = "\n".join(missing) or "nothing"
    time = f"{session.now():%Y-%m-%d %H:%M:%S} UTC"
    yield "README.txt", _README.format(time=time, version=version(), missing=told).encode()


def _output(session: Session, form: str, command: Callable[[Session], int]) -> bytes:
    """Output of another command."""
    stream = io.StringIO()
    command(replace(session, out=Output(stream, form=form, color=False)))
    return stream.getvalue().encode()


def _texts(pod: Obj) -> Iterator[tuple[str, str, dict[str, str], int]]:
    """Logs and metrics of a pod, each as name of its file, API path, query and most bytes."""
    metadata, statuses = pod["metadata"], at(pod, "status", "containerStatuses")
    where = PODS.path(metadata["namespace"], metadata["name"])
    restarted = {s["name"] for s in statuses if s.get("restartCount")}
    for container in at(pod, "spec", "containers"):
        name = container["name"]
        query = {"tailLines": str(_LOG_LINES), "limitBytes": str(LOG_BYTES), "timestamps": "true"}
        for previous in ("", "true") if name in restarted else ("",):
            file = f"logs/{metadata['name']}-{name}{'.previous' if previous else ''}.log"
            asked = query | {"container": name, "previous": previous}
            yield file, f"{where}/log", asked, LOG_BYTES
    for port in (p for c in at(pod, "spec", "containers") for p in at(c, "ports")):
        if port.get("name") == _METRICS:
            path = f"{where}:{port['containerPort']}/proxy/metrics"
            yield f"metrics/{metadata['name']}.txt", path, {}, _METRICS_BYTES


def _text(session: Session, path: str, query: dict[str, str], limit: int) -> bytes:
    raw = session.api.text(path, query=query, limit_bytes=limit)
    return redaction.log(raw.decode(errors="replace")).encode()


def _is_ours(pod: Obj) -> bool:
    return is_component(pod, CONTROLLER) or is_component(pod, PLUGIN)


def _is_about(obj: Obj, driver: str) -> bool:
    """True if the driver made the object, or the object is about the driver."""
    fields = (
        ("metadata", "name"),
        ("spec", "driver"),
        ("spec", "group"),
        ("reportingComponent",),
        ("source", "component"),
        ("apiVersion",),
    )
    return any(driver in str(at(obj, *field, default="")) for field in fields)


def _objects(name: str, found: Iterable[Any]) -> _File:
    return f"{name}.yaml", yaml.safe_dump_all(found, sort_keys=False).encode()
