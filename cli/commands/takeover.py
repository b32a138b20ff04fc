"""``kubectl mig takeover`` and ``handback``: a live node comes over from another manager, or back.

Both write ``spec.takeover`` of the node's MigNode, which the node's plugin carries out, and labels
of the Node by which the GPU operator keeps its programs there. What the labels were is in the
MigNode before they change, so that a run that was cut short can be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from msgspec import structs, to_builtins

from api.mignode import KeptInstance, KeptLabel
from cli.facts import read_site
from cli.output import CliError, Exit, Output
from cli.session import Session
from cli.site import NodeView
from dra.claims.claims import read_claim
from dra.common.resources import MIG_NODES, NODES, RESOURCE_CLAIMS, Obj, at
from dra.gpu.inventory import Inventory, Takeover
from dra.gpu.names import NVIDIA_DRIVER
from dra.kube.errors import ConflictError
from dra.kube.timing import rfc3339_micro

_MANAGER = "kubectl-mig"
_LABELS = tuple(
    f"nvidia.com/gpu.deploy.{each}" for each in ("device-plugin", "mig-manager", "dra-driver")
)
_OFF = "false"
_NOTHING: Obj = {"labels": None, "instances": None, "restore": None}


@dataclass(frozen=True, slots=True)
class _Plan:
    """Changes to be made for a node. ``wish``: for its MigNode. ``labels``: new values by key.

    ``told``: what was found. ``obstacles``: reasons why it must not begin. ``is_end``: what was
    there before has not to be remembered any longer.
    """

    wish: Takeover
    labels: dict[str, str]
    told: str
    obstacles: Sequence[str] = ()
    is_end: bool = False


_Planned = Callable[[Session, NodeView, Mapping[str, str]], _Plan]


def run(session: Session, *, node: str, execute: bool, status: bool) -> int:
    """Say what a takeover would do, do it, or say how far it is."""
    return _do(session, node, _take, execute=execute, status=status)


def handback(
    session: Session, *, node: str, execute: bool, status: bool, restore: bool | None
) -> int:
    """Say what would be handed back, hand the node back, or say how far that is."""
    plan = partial(_return, restore=restore)
    return _do(session, node, plan, execute=execute, status=status)


def _take(session: Session, view: NodeView, labels: Mapping[str, str]) -> _Plan:
    inventory, before = view.inventory, view.inventory.takeover
    if before is not None and not (before.is_return or _is_done(view, before)):
        wish = before
    else:
        present = [KeptLabel(k, labels[k]) for k in _LABELS if labels.get(k, _OFF) != _OFF]
        known = [*present, *(before.labels if before else ())]
        wish = Takeover(
            wish="take",
            since=rfc3339_micro(session.now()),
            labels=tuple({each.key: each for each in known}.values()),
            instances=(before and before.instances) or _foreign(inventory),
        )
    changed = {k.key: _OFF for k in wish.labels if labels.get(k.key) != _OFF}
    obstacles = [*view.faults] if not inventory.ready or view.silence else []
    for key in changed:
        if "paused-for-" in (value := labels.get(key, "")):
            text = "the GPU operator is at work, wait until it is done"
            obstacles.append(f"label {key}={value}: {text}")
    theirs = NVIDIA_DRIVER if session.driver != NVIDIA_DRIVER else ""
    for claim in map(read_claim, session.api.list(RESOURCE_CLAIMS).items):
        given = claim.allocation
        if given is not None and given.node == view.name and given.of_driver(theirs):
            text = "alone can unprepare it: cordon the node, and end its pods first"
            obstacles.append(f"claim {claim.ref} is of NVIDIA's DRA driver, which {text}")
    seen = "; ".join(dict.fromkeys(g.unavailable for g in inventory.gpus if g.unavailable))
    return _Plan(wish, changed, seen or "no other manager is seen", obstacles)


def _return(
    session: Session, view: NodeView, labels: Mapping[str, str], *, restore: bool | None
) -> _Plan:
    before = view.inventory.takeover
    wish = before or Takeover(wish="take", since="")
    is_empty = wish.is_return and _is_done(view, wish)
    is_other = restore not in {None, wish.restore} and bool(wish.instances)
    if not wish.is_return or (is_other and not is_empty):
        since = rfc3339_micro(session.now())
        wish = structs.replace(wish, wish="return", since=since, restore=bool(restore))
    changed = {k.key: k.value for k in wish.labels if is_empty and labels.get(k.key) == _OFF}
    back = ", ".join(f"{k.key}={k.value}" for k in wish.labels) or "no labels"
    made = f"; before that {len(wish.instances)} instances are made again" if wish.restore else ""
    told = f"once nothing is left, the same command puts back {back}{made}"
    are_back = all(labels.get(k.key) == k.value for k in wish.labels)
    is_end = is_empty or (wish.is_return and bool(wish.labels) and are_back)
    return _Plan(wish, changed, told, is_end=is_end)


def _do(session: Session, name: str, planned: _Planned, *, execute: bool, status: bool) -> int:
    """Write the plan if that is wanted and nothing is in the way, and print it."""
    view = read_site(session).named(name)
    if status:
        return _tell_progress(session.out, view)
    node = session.api.get(NODES, name)
    plan = planned(session, view, at(node, "metadata", "labels", default={}))
    wish, version = plan.wish, node["metadata"]["resourceVersion"]
    if execute and plan.obstacles:
        raise CliError(Exit.FINDING, f"nothing was done: {'; '.join(plan.obstacles)}")
    if execute and wish != view.inventory.takeover:
        _write(session, view.name, {**_NOTHING, **to_builtins(wish)})
    if execute and plan.labels:
        body = {"metadata": {"labels": plan.labels, "resourceVersion": version}}
        try:
            session.api.patch(NODES, view.name, body, field_manager=_MANAGER)
        except ConflictError as error:
            text = f"Node {view.name} has just changed; run the command again"
            raise CliError(Exit.FINDING, text) from error
    if execute and plan.is_end:
        _write(session, view.name, _NOTHING)
    _tell(session.out, view, plan, execute=execute)
    return Exit.FINDING if plan.obstacles else Exit.OK


def _is_done(view: NodeView, wish: Takeover) -> bool:
    done = view.inventory.progress
    return done is not None and (done.since, done.state) == (wish.since, "success")


def _write(session: Session, node: str, takeover: Obj) -> None:
    session.api.patch(MIG_NODES, node, {"spec": {"takeover": takeover}}, field_manager=_MANAGER)


def _tell(out: Output, view: NodeView, plan: _Plan, *, execute: bool) -> None:
    wish = plan.wish
    # Those that the wish is about: of others, or of this driver.
    slots = [(v, s) for v in view.gpus for s in v.slots if wish.is_return != (s.state == "foreign")]
    state = "asked for; --status says how far it is" if execute else "--execute does this"
    out.line(f"{out.bold(view.name)}  {wish.wish}: {state}")
    out.line(f"  driver {view.inventory.driver_version or 'not known'}; {plan.told}")
    for key, value in plan.labels.items():
        out.line(f"  label {key} becomes {value}")
    for gpu in view.gpus:
        if not gpu.gpu.mig_enabled:
            out.line(f"  {gpu.gpu.name}  MIG is off: offered while no pod of others has it whole")
    for gpu, slot in slots:
        who = slot.owner if wish.is_return else slot.message
        fate = f"stays until that ends: {who}" if who else "nobody has it: removed"
        out.line(f"  {gpu.gpu.name}  {slot.where}: {fate}")
    for text in plan.obstacles:
        out.paragraph("  ", f"{out.bad('!')} ", text)


def _tell_progress(out: Output, view: NodeView) -> int:
    wish, progress = view.inventory.takeover, view.inventory.progress
    current = progress if wish and progress and progress.since == wish.since else None
    state = current.state if current else "pending"
    if wish is None:
        out.line(f"{out.bold(view.name)}  neither taken over nor handed back")
    else:
        why = current.message if current else "its plugin has not answered yet"
        out.paragraph("", f"{out.bold(view.name)}  {wish.wish} is {state}: ", why)
    return Exit.OK if state == "success" else Exit.FINDING


def _foreign(inventory: Inventory) -> tuple[KeptInstance, ...]:
    return tuple(
        KeptInstance(gpu.uuid, each.placement, each.profile_id)
        for gpu in inventory.gpus
        for each in gpu.instances
        if each.state == "foreign" and each.profile_id is not None
    )
