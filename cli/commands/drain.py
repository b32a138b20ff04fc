"""``kubectl mig drain``: place nothing new on a node's GPUs, and wait until they are free."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator
from typing import Any

from cli.commands.map import slot_json
from cli.shell.exits import CliError, Exit
from cli.shell.output import NAME, nameless
from cli.shell.session import Session
from cli.site.draining import drained, merge, write_drain
from cli.site.occupancy import GpuView, NodeView, Slot
from cli.site.reading import site
from dra.common.resources import PODS, Obj
from dra.gpu.reasons import GpuReason
from dra.kube.errors import ConflictError, KubeError, ObjectNotFoundError, UnavailableError
from dra.kube.timing import rfc3339

_POLL_SECONDS = 2.0
_RELEASE_SECONDS = 30.0
"""Patience of --wait with the node's plugin, which may not run, to release idle GPUs."""


def run(session: Session, arguments: argparse.Namespace) -> int:
    """Drain, say who still uses the GPUs, and wait or evict if asked to."""
    node = _node(session, arguments.node)
    wanted = merge(
        node.inventory,
        tuple(arguments.gpu),
        reason=arguments.reason,
        since=rfc3339(session.now()),
    )
    if wanted != node.inventory.drain:
        write_drain(session, arguments.node, wanted)
    evicted: set[str] = set()
    refused: dict[str, str] = {}
    deadline = time.monotonic() + arguments.timeout
    idle: float | None = None
    while True:
        node = _node(session, arguments.node)
        users = _users(node, arguments.gpu)
        if arguments.evict:
            refused = _evict(session, users, evicted)
        held, now = _held(node, arguments.gpu), time.monotonic()
        idle = None if users else idle or now
        done = not users and not held
        if done or not arguments.wait or now >= deadline:
            break
        if idle is not None and now - idle >= _RELEASE_SECONDS:
            break
        session.pause(_POLL_SECONDS)
    _report(session, node, users, held=held, evicted=sorted(evicted), refused=refused)
    return Exit.FINDING if users else Exit.OK


def _node(session: Session, name: str) -> NodeView:
    found = site(session)
    node = found.node(name)
    if node is None:
        have = ", ".join(n.name for n in found.nodes[:10]) or "none"
        raise CliError(Exit.NOT_FOUND, f"there is no MigNode {name!r}; there are: {have}")
    return node


def _users(node: NodeView, gpus: Iterable[str]) -> list[tuple[GpuView, Slot]]:
    """Slots still in use on the GPUs that this call is about: those that claims have.

    Nobody waits for foreign instances, nor for places that a GPU keeps until it is reset.
    """
    wanted = set(gpus)
    return [
        (v, s)
        for v in node.gpus
        if not wanted or v.gpu.name in wanted
        for s in v.slots
        if s.claim is not None
    ]


def _held(node: NodeView, gpus: Iterable[str]) -> list[str]:
    """The GPUs that the node's plugin has not released, of those that this call is about."""
    wanted = set(gpus)
    return [
        v.gpu.name
        for v in node.gpus
        if (not wanted or v.gpu.name in wanted) and v.gpu.reason != GpuReason.RELEASED
    ]


def _evict(
    session: Session, users: list[tuple[GpuView, Slot]], evicted: set[str]
) -> dict[str, str]:
    """Ask for the eviction of pods that use the slices; returns who was spared, and why.

    A PodDisruptionBudget answers 429: it is tried again while the command waits.
    """
    refused: dict[str, str] = {}
    for _, slot in users:
        for user in slot.users if slot.claim else ():
            namespace = slot.claim.namespace if slot.claim else ""
            key = f"{namespace}/{user.name}"
            if key in evicted:
                continue
            body: Obj = {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": user.name, "namespace": namespace},
                "deleteOptions": {"preconditions": {"uid": user.uid}},
            }
            try:
                session.api.create(PODS, body, subresource="eviction")
                evicted.add(key)
            except (ObjectNotFoundError, ConflictError):
                continue  # the pod is gone, and another of its name is none of ours
            except UnavailableError as error:
                refused[key] = str(error)
            except KubeError as error:
                raise CliError(Exit.FORBIDDEN, f"cannot evict pod {key}: {error}") from error
    return refused


def _report(  # noqa: PLR0913 - what it tells
    session: Session,
    node: NodeView,
    users: list[tuple[GpuView, Slot]],
    *,
    held: list[str],
    evicted: list[str],
    refused: dict[str, str],
) -> None:
    out, drain = session.out, node.inventory.drain
    foreign = [(v, s) for v in node.gpus for s in v.slots if s.state == "foreign"]
    if out.is_json:
        content: dict[str, Any] = {
            "node": node.name,
            "drained": drained(node.inventory),
            "reason": drain.reason if drain else "",
            "since": drain.since if drain else "",
            "inUse": [{"gpu": v.gpu.name, **slot_json(s)} for v, s in users],
            "foreign": [{"gpu": v.gpu.name, **slot_json(s)} for v, s in foreign],
            "held": held,
            "evicted": evicted,
            "notEvicted": refused,
        }
        out.json("Drain", content)
        return
    names = ", ".join(drained(node.inventory)) or "none"
    out.line(f"{out.bold(node.name)}  drained: {names}")
    for key in evicted:
        out.line(f"  pod {key} evicted")
    for key, why in refused.items():
        out.line(f"  {out.odd('!')} pod {key} is not evicted yet: {why}")
    for view, slot in users:
        out.line(f"  {view.gpu.name}  {slot.where}, {slot.state}: {slot.owner}")
    for view, slot in foreign:
        out.line(out.dim(f"  {view.gpu.name}  {slot.where}: foreign, left alone"))
    if users:
        out.line(
            out.odd(f"{len(users)} still in use") + "; --wait waits, --evict evicts their pods"
        )
    else:
        out.line(out.good("nothing of this driver is in use there"))
        if held:
            names = ", ".join(held)
            out.line(out.odd(f"the node's plugin has not released {names} yet") + "; --wait waits")
        else:
            out.line("the node's plugin has released them:")
            for found, text in _released(node):
                out.paragraph("  ", f"{', '.join(found)}  ", text)


def _released(node: NodeView) -> Iterator[tuple[list[str], str]]:
    """The GPUs of which the plugin says the same, and that, with all their names for each name."""
    alike: dict[str, list[str]] = {}
    for gpu in (view.gpu for view in node.gpus):
        if gpu.reason == GpuReason.RELEASED:
            alike.setdefault(nameless(gpu.unavailable, gpu.name), []).append(gpu.name)
    for text, names in alike.items():
        yield names, text.replace(NAME, " ".join(names))
