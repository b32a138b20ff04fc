"""``kubectl mig defrag``: room for a pod that waits, by moving pods that let it be done.

The controller moves the pods as long as this program runs and asks for it by an annotation of a
MigNode, that of the node where there is to be room. It tells of each step in an event of the pod.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from msgspec import structs

from api.mignode import RoomRequest
from cli.commands import plan
from cli.explaining.judge import Judge
from cli.facts import ClusterFacts, read_facts
from cli.output import CliError, Exit
from cli.planning import Forecast, find_room, first_in_line, forecast
from cli.session import Session, evaluator
from dra.allocator.allocate import Allocator
from dra.allocator.movers import may_move
from dra.allocator.problem import Problem
from dra.claims.claims import read_claim
from dra.claims.reasons import Obstacle, Reason
from dra.common.resources import EVENTS, MIG_NODES, PODS, RESOURCE_CLAIMS, ObjectKey, at
from dra.gpu.names import defrag, movable
from dra.kube.errors import KubeError, ObjectNotFoundError
from dra.pods.pods import Pod

_MANAGER = "kubectl-mig"
_POLL_SECONDS = 1.0
_BEAT_SECONDS = 10.0
"""Seconds between renewals; the controller forgets a request not renewed within 45 s."""
_WHY = (
    "pods are not moved for gangs, whole GPUs or claims of several slices; "
    "see who is in the way of those: kubectl mig explain pod NAME"
)


def run(session: Session, *, profile: str, pod: str, execute: bool, timeout: float) -> int:
    """Show the plan; ``execute``: have it carried out, and return 1 unless the pod is served."""
    key = (session.namespace, pod) if pod else None
    with evaluator() as asked:
        facts = read_facts(session, "")
        judge = Judge(facts, asked)
        waiting = first_in_line(facts, judge, profile, key)
        if waiting is None and (execute or key):
            raise CliError(Exit.NOT_FOUND, f"{_nobody(profile, key)}, so nothing was done: {_WHY}")
        found = _look(facts, judge, profile, waiting)
    if isinstance(found, Obstacle):
        raise CliError(Exit.NOT_FOUND, found.message)
    who, has_moves = waiting[0] if waiting is not None else None, bool(found.movers)
    unwilling = [p for p in found.movers.values() if not may_move(p, session.driver)]
    if who is not None:
        session.out.line(f"for pod {who}, which waits first of those that ask for {profile}:")
    else:
        session.out.line(f"{_nobody(profile, None)}; for one that did:")
    plan.show(found, 1, session.out)
    _tell_unwilling(session, unwilling)
    if not execute:
        return Exit.OK if found.steps and not has_moves else Exit.FINDING
    if who is None or not has_moves or unwilling:
        why = "some pods may not be moved" if unwilling else "moving pods is not what it waits for"
        raise CliError(Exit.FINDING, f"nothing was done: {why}; see: kubectl mig explain pod {who}")
    return _execute(session, who, found, timeout)


def _nobody(profile: str, key: ObjectKey | None) -> str:
    which = f"pod {'/'.join(key)} does not wait" if key is not None else "no pod waits"
    return f"{which} by itself for one slice of {profile} and nothing else"


def _look(
    facts: ClusterFacts, judge: Judge, profile: str, waiting: tuple[Pod, Problem] | None
) -> Forecast | Obstacle:
    """The plan by moves of pods that allow it, or else of any that would come back."""
    if waiting is None:
        return forecast(facts, judge, profile, 1)
    allocator: Allocator = judge.allocator
    problem = waiting[1]
    found = find_room(
        facts, allocator, problem, profile, 1, may_move=lambda p: may_move(p, facts.driver)
    )
    return found if found.steps else find_room(facts, allocator, problem, profile, 1)


def _tell_unwilling(session: Session, unwilling: list[Pod]) -> None:
    if unwilling:
        session.out.line()
        label = f"{movable(session.driver)}=true"
        names = ", ".join(map(str, unwilling))
        session.out.paragraph("  ", "not allowed: ", f"{names} would need label {label}")


# -- carrying it out


@dataclass(frozen=True, slots=True)
class _Order:
    """A request for room on a node for a pod.

    ``told``: keys of the events that were seen.
    """

    session: Session
    pod: Pod
    node: str
    request: RoomRequest
    told: set[object]


def _execute(session: Session, pod: Pod, found: Forecast, timeout: float) -> int:
    node = next(step.gpu.node for step in found.steps if step.mover is None)
    request = RoomRequest(pod.uid, str(uuid.uuid4()), len(found.movers))
    told = {key for key, _, _ in _events(session, pod)}
    order, out = _Order(session, pod, node, request, told), session.out
    out.line()
    out.line(f"the controller is asked to move them, for {timeout:g} s at the most (--timeout)")
    try:
        code, last = _watch(order, time.monotonic() + timeout)
    finally:
        with suppress(KubeError):
            _annotate(order, None)
    out.line((out.good if code == Exit.OK else out.bad)(last))
    return code


def _watch(order: _Order, end: float) -> tuple[Exit, str]:
    """Renew the request and print what the controller tells, until it is over."""
    asked, session, served, has_acted = 0.0, order.session, None, False
    while True:
        now = time.monotonic()
        if now >= asked + _BEAT_SECONDS:
            _renew(order, first=not asked)
            asked = now
        for key, reason, message in _events(session, order.pod):
            if key in order.told:
                continue
            order.told.add(key)
            if reason == Reason.ROOM_NOT_MADE.value:
                return Exit.FINDING, f"stopped: {message}"
            has_acted = True
            session.out.line(f"  {message}")
        if served is not None:  # once all events until then are printed
            return served
        if (served := _served(session, order.pod)) is None and now >= end:
            what = "it is not served yet" if has_acted else "the controller has done nothing"
            return Exit.FINDING, f"stopped: {what} (kubectl mig doctor; --timeout)"
        time.sleep(_POLL_SECONDS)


def _renew(order: _Order, *, first: bool) -> None:
    found = order.session.api.get(MIG_NODES, order.node)
    key = defrag(order.session.driver)
    there = RoomRequest.read(at(found, "metadata", "annotations", key, default=""))
    if not first and there is not None and there.id != order.request.id:
        why = f"somebody else asks for room on node {order.node} now; see what comes of that"
        raise CliError(Exit.FINDING, f"stopped: {why}")
    _annotate(order, str(structs.replace(order.request, beat=int(time.monotonic()))))


def _annotate(order: _Order, text: str | None) -> None:
    body = {"metadata": {"annotations": {defrag(order.session.driver): text}}}
    order.session.api.patch(MIG_NODES, order.node, body, field_manager=_MANAGER)


def _served(session: Session, pod: Pod) -> tuple[Exit, str] | None:
    """Exit code and message if the pod was served or is gone; None as long as it waits."""
    namespace, name = pod.key
    try:
        there = session.api.get(PODS, name, namespace=namespace)
        if there["metadata"]["uid"] != pod.uid:
            return Exit.FINDING, f"stopped: pod {pod} is gone"
        [claim] = pod.claim_keys
        found = read_claim(session.api.get(RESOURCE_CLAIMS, claim[1], namespace=namespace))
    except ObjectNotFoundError:
        return Exit.FINDING, f"stopped: pod {pod} is gone"
    if found.allocation is None:
        return None
    devices = ", ".join(d.device for d in found.allocation.devices)
    return Exit.OK, f"pod {pod} has {devices} on node {found.allocation.node}"


def _events(session: Session, pod: Pod) -> Iterator[tuple[object, str, str]]:
    """Events of the pod about room for it: key, reason and message of each."""
    selector = f"involvedObject.uid={pod.uid}"
    found = session.api.list(EVENTS, namespace=pod.key[0], field_selector=selector).items
    wanted = {Reason.MAKING_ROOM.value, Reason.ROOM_NOT_MADE.value}
    for each in sorted(found, key=lambda e: str(e.get("lastTimestamp") or "")):
        if at(each, "involvedObject", "uid") == pod.uid and each.get("reason") in wanted:
            key = each["metadata"]["name"], each.get("count")
            yield key, each["reason"], each.get("message", "")
