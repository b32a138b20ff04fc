"""``kubectl mig drain`` and ``resume``: a node's GPUs out of service and back.

Both write ``spec.drain`` of the node's MigNode; ``drain`` can wait until the GPUs are free.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from cli.facts import read_site
from cli.output import NAME, CliError, Exit, Output, nameless
from cli.session import Session
from cli.site import GpuView, NodeView, Slot, remedy_of
from dra.common.resources import MIG_NODES, PODS, Obj
from dra.gpu.inventory import HARMFUL, Drain, GpuReason, Inventory
from dra.kube.errors import ConflictError, KubeError, ObjectNotFoundError, UnavailableError
from dra.kube.timing import rfc3339

_MANAGER = "kubectl-mig"
_POLL_SECONDS = 2.0
_RELEASE_SECONDS = 30.0
"""Seconds that --wait gives the node's plugin, which may not run, to release idle GPUs."""

_EVICTS = "--evict evicts their pods"

_Used = list[tuple[GpuView, Slot]]


@dataclass(slots=True)
class _State:
    """State of a node that is drained.

    ``gpus``: names of its GPUs that are meant. ``users``: slices that claims have. ``held``: GPUs
    that the node's plugin has not released.
    ``evicted``: pods that were asked to leave. ``refused``: by pod, the reason why it is not
    evicted yet.
    """

    node: NodeView
    gpus: list[str]
    users: _Used
    held: list[str]
    evicted: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)


def run(  # noqa: PLR0913 - the options of the command
    session: Session,
    *,
    node: str,
    gpu: Sequence[str],
    reason: str,
    wait: bool,
    timeout: float,
    evict: bool,
) -> int:
    """Drain, say who still uses the GPUs, and wait or evict if asked to."""
    inventory = read_site(session).named(node).inventory
    wanted = _more(inventory, tuple(gpu), reason=reason, since=rfc3339(session.now()))
    _write(session, inventory, wanted)
    evicted: set[str] = set()
    begun = time.monotonic()
    deadline, now = begun + timeout, begun
    idle: float | None = None
    while True:
        state = _look(session, node, gpu, evicted)
        if evict and (now == begun or now < deadline):  # the first time in any case
            _evict(session, state)
        now = time.monotonic()
        idle = None if state.users else idle or now
        done = not state.users and not state.held
        patient = idle is None or now - idle < _RELEASE_SECONDS
        if done or not wait or now >= deadline or not patient:
            break
        time.sleep(_POLL_SECONDS)
    over = f" after {timeout:.0f} s" if wait and now >= deadline else ""
    hints = [text for asked, text in ((wait, "--wait waits"), (evict, _EVICTS)) if not asked]
    _report(session, state, over=over, hints=hints)
    return Exit.FINDING if state.users or (wait and state.held) else Exit.OK


def resume(session: Session, *, node: str, gpu: Sequence[str]) -> int:
    """Take GPUs, or the whole node, back into service."""
    inventory = read_site(session).named(node).inventory
    before = _drained(inventory)
    _check_gpus(inventory, gpu)
    left = _fewer(inventory, gpu)
    _write(session, inventory, left)
    still = [g for g in before if left is not None and left.covers(g)]
    back = [g for g in before if g not in still]
    if back:
        text = f"back in service: {', '.join(back)}"
    elif gpu and before:
        text = f"{', '.join(gpu)} was not drained"
    else:
        text = "nothing to do: no GPU of it was drained"
    rest = f"; still drained: {', '.join(still)}" if still else ""
    session.out.line(f"{session.out.bold(node)}  {text}{rest}")
    return Exit.OK


def _drained(inventory: Inventory) -> list[str]:
    """The GPUs of a node that are out of service."""
    return [g.name for g in inventory.gpus if inventory.is_drained(g.name)]


def _more(inventory: Inventory, gpus: tuple[str, ...], *, reason: str, since: str) -> Drain:
    """The node's drain with ``gpus`` added to it; a drain of all GPUs if ``gpus`` is empty.

    Raises:
        CliError: the node has no such GPU.
    """
    _check_gpus(inventory, gpus)
    before = inventory.drain
    if before is None:
        return Drain(gpus, reason, since)
    both = () if not gpus or not before.gpus else tuple(sorted({*before.gpus, *gpus}))
    reason = reason or before.reason
    if (both, reason) == (before.gpus, before.reason):
        return before
    return Drain(both, reason, since)


def _fewer(inventory: Inventory, gpus: Collection[str]) -> Drain | None:
    """The node's drain without ``gpus``; None if ``gpus`` is empty, or no other GPU is drained."""
    before = inventory.drain
    if before is None or not gpus:
        return None
    left = tuple(g for g in _drained(inventory) if g not in gpus)
    return Drain(left, before.reason, before.since) if left else None


def _check_gpus(inventory: Inventory, gpus: Iterable[str]) -> None:
    known = [g.name for g in inventory.gpus]
    for name in gpus:
        if name not in known:
            raise CliError(
                Exit.NOT_FOUND,
                f"node {inventory.node} has no {name!r}; its GPUs are: {', '.join(known)}",
            )


def _write(session: Session, inventory: Inventory, drain: Drain | None) -> None:
    """Set ``spec.drain`` of the MigNode to ``drain``, unless it is that already."""
    if drain == inventory.drain:
        return
    wanted = None
    if drain is not None:
        gpus, reason = [*drain.gpus] or None, drain.reason or None
        wanted = {"gpus": gpus, "reason": reason, "since": drain.since}
    body = {"spec": {"drain": wanted}}
    session.api.patch(MIG_NODES, inventory.node, body, field_manager=_MANAGER)


def _look(session: Session, name: str, gpus: Collection[str], evicted: set[str]) -> _State:
    """State of ``gpus`` of a node; of all its GPUs if ``gpus`` is empty.

    A GPU is in use while claims have slots on it. Foreign instances, placements that a GPU keeps
    until it is reset, and slices for nobody on a GPU that was released for that, do not count.
    """
    node = read_site(session).named(name)
    views = [v for v in node.gpus if not gpus or v.gpu.name in gpus]
    held_up = [(v, s) for v in views for s in v.slots if s.claim is not None]
    users = [(v, s) for v, s in held_up if s.users or v.gpu.reason != GpuReason.RELEASED]
    held = [v.gpu.name for v in views if v.gpu.reason != GpuReason.RELEASED]
    return _State(node, [v.gpu.name for v in views], users, held, evicted)


def _evict(session: Session, state: _State) -> None:
    """Ask for the eviction of pods that use the slices.

    An eviction that a PodDisruptionBudget forbids (429) is tried again while the command waits.
    """
    for _, slot in state.users:
        namespace = slot.claim.namespace if slot.claim else ""
        for user in slot.users:
            key = f"{namespace}/{user.name}"
            if key in state.evicted:
                continue
            body: Obj = {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": user.name, "namespace": namespace},
                "deleteOptions": {"preconditions": {"uid": user.uid}},
            }
            try:
                session.api.create(PODS, body, subresource="eviction")
                state.evicted.add(key)
            except (ObjectNotFoundError, ConflictError):
                continue  # the pod has gone; another pod of its name uses none of these
            except UnavailableError as error:
                state.refused[key] = str(error)
            except KubeError as error:
                raise CliError(Exit.FORBIDDEN, f"cannot evict pod {key}: {error}") from error


def _report(session: Session, state: _State, *, over: str, hints: Sequence[str]) -> None:
    out, node = session.out, state.node
    foreign = [(v, s) for v in node.gpus for s in v.slots if s.state == "foreign"]
    out.line(f"{out.bold(node.name)}  drained: {', '.join(_drained(node.inventory)) or 'none'}")
    for key in sorted(state.evicted):
        out.line(f"  pod {key} evicted")
    for key, why in state.refused.items():
        out.line(f"  {out.odd('!')} pod {key} is not evicted yet: {why}")
    for view, slot in state.users:
        out.line(f"  {view.gpu.name}  {slot.where}, {slot.state}: {slot.owner}")
    for view, slot in foreign:
        out.line(out.dim(f"  {view.gpu.name}  {slot.where}: foreign, left alone"))
    for view in (v for v in node.gpus if v.gpu.reason in HARMFUL and v.gpu.name in state.gpus):
        text, known = view.gpu.unavailable, remedy_of(view, view.gpu.reason)
        text = text if known in text else f"{text}; {known}"
        out.paragraph("  ", f"{out.bad('!')} {view.gpu.name}  ", text)
    _tell_use(state, out, over=over, hints=hints)


def _tell_use(state: _State, out: Output, *, over: str, hints: Sequence[str]) -> None:
    if state.users:
        text = out.odd(f"{len(state.users)} still in use{over}")
        out.line("; ".join((text, ", ".join(hints))) if hints else text)
        return
    out.line(out.good("nothing of this driver is in use there"))
    if state.held:
        late = f"{', '.join(state.held)}{over or ' yet'}"
        text = out.odd(f"the node's plugin has not released {late}")
        out.line("; ".join((text, *(h for h in hints if h != _EVICTS), *state.node.faults)))
        return
    out.line("the node's plugin has released them:")
    alike: dict[str, list[str]] = {}
    for gpu in (view.gpu for view in state.node.gpus):
        if gpu.reason == GpuReason.RELEASED:
            alike.setdefault(nameless(gpu.unavailable, gpu.name), []).append(gpu.name)
    for text, names in alike.items():
        out.paragraph("  ", f"{', '.join(names)}  ", text.replace(NAME, " ".join(names)))
