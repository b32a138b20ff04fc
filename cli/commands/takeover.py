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
from dra.common.resources import MIG_NODES, NODES, RESOURCE_CLAIMS, at
from dra.gpu.inventory import Inventory, Takeover, TakeoverProgress
from dra.gpu.names import NVIDIA_DRIVER
from dra.kube.timing import rfc3339_micro

_MANAGER = "kubectl-mig"
_LABELS = tuple(
    f"nvidia.com/gpu.deploy.{each}" for each in ("device-plugin", "mig-manager", "dra-driver")
)
_OFF, _SUCCESS = "false", "success"


@dataclass(frozen=True, slots=True)
class _Plan:
    """Changes to be made for a node. ``wish``: for its MigNode. ``labels``: new values by key.

    ``told``: what was found. ``obstacles``: reasons why it must not begin.
    """

    wish: Takeover
    labels: dict[str, str]
    told: str
    obstacles: Sequence[str] = ()


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
    inventory = view.inventory
    before = inventory.takeover or Takeover(wish="return", since="")
    is_over = not before.since or _progress(view, before).state == _SUCCESS
    wish = before
    if before.is_return or is_over:
        kept = {k.key: k.value for k in before.labels if labels.get(k.key) == _OFF}
        kept |= {k: labels[k] for k in _LABELS if labels.get(k, _OFF) != _OFF}
        is_new = before.is_return and is_over
        wish = Takeover(
            wish="take",
            since=rfc3339_micro(session.now()),
            labels=tuple(KeptLabel(*each) for each in kept.items()),
            instances=(not is_new and before.instances) or _foreign(inventory),
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
    before = view.inventory.takeover or Takeover(wish="take", since="")
    restore = before.restore if restore is None else restore
    wish = structs.replace(before, wish="return", restore=restore)
    if wish != before:
        wish = structs.replace(wish, since=rfc3339_micro(session.now()))
    is_empty = _progress(view, wish).state == _SUCCESS
    changed = {k.key: k.value for k in wish.labels if is_empty and labels.get(k.key) == _OFF}
    back = ", ".join(f"{k.key}={k.value}" for k in wish.labels) or "no labels"
    made = f"; before that {len(wish.instances)} instances are made again" if wish.restore else ""
    told = f"once nothing is left, the same command puts back {back}{made}"
    return _Plan(wish, changed, told)


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
        body = {"spec": {"takeover": to_builtins(structs.asdict(wish))}}
        session.api.patch(MIG_NODES, view.name, body, field_manager=_MANAGER)
    if execute and plan.labels:
        body = {"metadata": {"labels": plan.labels, "resourceVersion": version}}
        session.api.patch(NODES, view.name, body, field_manager=_MANAGER)
    _tell(session.out, view, plan, execute=execute)
    return Exit.FINDING if plan.obstacles else Exit.OK


def _progress(view: NodeView, wish: Takeover) -> TakeoverProgress:
    """Progress of a wish, as the node's plugin tells."""
    told = view.inventory.progress
    if told is not None and told.since == wish.since:
        return told
    return TakeoverProgress(wish.since, "pending", "its plugin has not answered yet")


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
    wish = view.inventory.takeover or Takeover(wish="", since="")
    progress = _progress(view, wish)
    if not wish.wish:
        out.line(f"{out.bold(view.name)}  neither taken over nor handed back")
    else:
        text = f"{out.bold(view.name)}  {wish.wish} is {progress.state}: "
        out.paragraph("", text, progress.message)
    return Exit.OK if progress.state == _SUCCESS else Exit.FINDING


def _foreign(inventory: Inventory) -> tuple[KeptInstance, ...]:
    return tuple(
        KeptInstance(gpu.uuid, each.placement, each.profile_id)
        for gpu in inventory.gpus
        for each in gpu.instances
        if each.state == "foreign" and each.profile_id is not None
    )
