"""Engine of a leadership: the consequences of changes, and the next piece of work.

The engine has no threads and never waits: the loop around it takes changes in and calls it. Other
threads make the writes, and ``absorb`` takes their answers. After each look at a pod or claim one
keeper of other objects has its turn, if it is due.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from controller import times
from controller.cluster.records import Effects, PodRecord, TakenBack
from controller.keep.classes import GeneratedClasses
from controller.keep.labels import NodeLabels
from controller.keep.node_classes import NodeClasses
from controller.keep.templates import LimitTemplates
from controller.queue.line import gang_uid
from controller.serve import making_room, placing, steering
from controller.serve.allocations import note_claim
from controller.serve.binding import note_claim_made
from controller.serve.claims import serve_claim
from controller.serve.nudges import is_crowded
from controller.serve.rules import serve
from controller.serve.world import World
from controller.write.requests import NotLeadingError
from dra.claims.reasons import Obstacle, Reason
from dra.common.resources import ObjectKey

_log = logging.getLogger(__name__)

_SHOWN = 200


class Keeper(Protocol):
    """Keeper of objects of a kind; it begins one write at a time, and makes no request itself."""

    @property
    def due(self) -> float:
        """The monotonic time of the next piece of work; inf where there is none."""

    def note(self, effects: Effects) -> None:
        """Note changes for which the kept objects may have to change."""

    def work(self) -> None:
        """Do one piece of work that is due, such as to begin a write."""


class Keepers:
    """Keepers in order of precedence. A keeper that raises an error rests; others go on."""

    def __init__(self, keepers: list[Keeper], now: Callable[[], float]) -> None:
        self.all = keepers
        self._now = now
        self._rests: dict[int, float] = {}

    @property
    def due(self) -> float:
        """The monotonic time of the next piece of work; inf where there is none."""
        return min(map(self._due, self.all))

    def work_if_due(self) -> bool:
        """Have the first keeper work that is due; returns False if none is.

        Raises:
            NotLeadingError: nothing may be written any more.
        """
        keeper = next((each for each in self.all if self._due(each) <= self._now()), None)
        if keeper is not None:
            try:
                keeper.work()
            except NotLeadingError:
                raise
            except Exception:  # noqa: BLE001 - it may be anything
                # One object that we cannot handle must not keep pods from being served.
                _log.exception("objects not kept for a while", extra={"pause": times.KEEPER_FAILED})
                self._rests[id(keeper)] = self._now() + times.KEEPER_FAILED
        return keeper is not None

    def _due(self, keeper: Keeper) -> float:
        rests = self._rests.get(id(keeper), 0.0) if self._rests else 0.0
        return max(keeper.due, rests)


class Engine:
    """Work of one leadership on ``world``. Owned by one thread."""

    def __init__(self, world: World) -> None:
        self._world = world
        keepers: list[Keeper] = [GeneratedClasses(world), LimitTemplates(world)]
        if world.options.node_labels:
            keepers.append(NodeLabels(world))
        if world.options.node_classes is not None:
            keepers.append(NodeClasses(world, world.options.node_classes))
        keepers.append(world.reporter.conditions)
        self._keepers = Keepers(keepers, world.now)
        self._is_keepers_turn = True

    def absorb(self) -> None:
        """Turn answers and the effects of changes into work.

        Raises:
            NotLeadingError: nothing may be written any more.
        """
        world = self._world
        if world.in_flight.take_answers():
            world.agenda.go_on()
        answered = world.evaluations.take_answers() if world.evaluations is not None else []
        for key in (*answered, *world.line.look_again()):
            world.agenda.add_pod(key)
        world.refusals.expire()
        # To take effects may have further effects: a pod that leaves the line releases its hold.
        while effects := world.cluster.take_effects():
            self._take(effects)

    def work(self) -> bool:
        """Do one piece of work; returns False if none is due or too many writes are in flight.

        Raises:
            NotLeadingError: nothing may be written any more.
        """
        first, self._is_keepers_turn = self._is_keepers_turn, True
        if first and self._keepers.work_if_due():
            self._is_keepers_turn = False
            return True
        return self._serve() or (not first and self._keepers.work_if_due())

    @property
    def due(self) -> float:
        """The monotonic time of the next piece of work, inf when only an answer brings any."""
        world = self._world
        due = min(self._keepers.due, world.line.due, world.refusals.due)
        if world.evaluations is not None:
            due = min(due, world.evaluations.due)
        if world.in_flight.full:
            return due
        return min(due, world.now() if world.decisions.are_ongoing else world.agenda.due)

    # -- work

    def _serve(self) -> bool:
        """Look at a claim or a pod, or go on with a decision; returns False if none is due."""
        world = self._world
        if world.in_flight.full:
            return False
        claim = world.agenda.claims.pop()
        if claim is not None:
            self._attempt(claim, serve_claim, world.claim_looked_at)
            return True
        return self._go_on_deciding(idle=False) or self._look() or self._go_on_deciding(idle=True)

    def _look(self) -> bool:
        world = self._world
        look = world.agenda.pop()
        if look is None:
            return False
        self._attempt(look.key, serve, world.pod_looked_at)
        if world.decisions.is_ongoing(look.key):
            return True  # pods alike wait for its outcome
        pod = world.agenda.waiting_pod(look.key)
        if pod is None or not world.agenda.waits(look.key) or world.line.is_held_for(pod.uid):
            look.go_on()
        return True

    def _go_on_deciding(self, *, idle: bool) -> bool:
        """Make a part of an ongoing decision; returns False if it is not the turn of one."""
        world = self._world
        found = world.decisions.next(idle=idle)
        if found is None:
            return False
        key, leader = found
        self._attempt(leader, serve, world.pod_looked_at)
        world.decisions.end_turn(key)
        if not world.decisions.is_ongoing(key):
            # Pods alike wait for this, and something may have become free meanwhile.
            world.agenda.room_made()
        return True

    def _attempt(
        self,
        key: ObjectKey,
        look: Callable[[World, ObjectKey], bool],
        ended: Callable[[ObjectKey, Exception | None], object],
    ) -> None:
        """Look at a pod or claim; ``ended`` is called here unless the answer of a write does it."""
        try:
            if not look(self._world, key):
                ended(key, None)
        except Exception as error:  # noqa: BLE001 - it may be anything
            # One object that we cannot handle must not keep the others from being served.
            ended(key, error)

    # -- consequences of changes

    def _take(self, effects: Effects) -> None:
        world = self._world
        for taken in effects.taken_back:
            _tell(self._taken_back, taken)
        _tell(self._nodes_changed, effects)
        for keeper in self._keepers.all:
            _tell(keeper.note, effects)
        for pod_record in effects.gone_pods:
            _tell(self._pod_gone, pod_record)
        for gang in effects.gone_gangs:
            _tell(world.line.leaves, gang_uid(gang))
        for key in effects.claims:
            _tell(self._claim_changed, key)
        for key in effects.pods:
            _tell(self._pod_changed, key, is_bound_now=key in effects.bound)
        if effects.classes:
            world.allocator.delegated = frozenset(
                c.extended_resource for c in world.cluster.classes.values() if c.extended_resource
            )
        _tell(self._room_made, effects)
        if effects.changed_nodes:
            _tell(world.reporter.unreadable, world.cluster.unreadable)

    def _nodes_changed(self, effects: Effects) -> None:
        """Tell the refusals of nodes that changed, and of Prepares that failed."""
        world = self._world
        for node in effects.nodes:
            world.refusals.ease(node)
        for node in effects.others:
            world.refusals.renew(node)
            world.cluster.make_room(*([node] if node else ()))
        for node in effects.changed_nodes:
            world.refusals.note_failures(node)

    def _pod_changed(self, key: ObjectKey, *, is_bound_now: bool) -> None:
        world = self._world
        pod = world.cluster.pods.get(key)
        record = world.cluster.pod_index.records.get(pod.uid) if pod is not None else None
        if pod is not None and is_bound_now:
            world.refusals.bound(world.cluster.pod_index.template(pod), pod.node)
            if record is not None:
                placing.prove(world, record)
        if pod is not None and pod.claims:
            steering.note_pod(world, pod)
        if not world.agenda.add_pod(key) and pod is not None and pod.claims:
            world.reporter.left(pod)
            world.line.leaves(pod.uid)
            if record is not None:
                making_room.end(world, record)

    def _claim_changed(self, key: ObjectKey) -> None:
        note_claim(self._world, key)
        note_claim_made(self._world, key)
        self._world.agenda.add_claim(key)

    def _pod_gone(self, record: PodRecord) -> None:
        world = self._world
        placing.end_unproven(world, record)
        steering.end(world, record)
        making_room.end(world, record)
        world.line.leaves(record.pod.uid)

    def _room_made(self, effects: Effects) -> None:
        world = self._world
        anywhere = "" in effects.room or effects.classes
        nodes = effects.room & world.cluster.fleet.nodes.keys()
        if nodes or anywhere or effects.quota:
            world.line.note_room(nodes)
            world.refused.room.make(nodes, anywhere=anywhere)
            world.decisions.room_made()
            world.agenda.room_made()

    def _taken_back(self, taken: TakenBack) -> None:
        """Leave a node out for the pods of a claim whose allocation there was taken back."""
        world, node = self._world, taken.node
        known = world.cluster.claims.get(taken.claim)
        for pod in world.cluster.pod_index.of_claim(taken.claim) if known is not None else ():
            if not pod.pending or pod.node or known is None:
                continue
            placing.refute(world, world.cluster.pod_index.record(pod))
            template = world.cluster.pod_index.template(pod)
            # kube-scheduler takes an allocation back if the pod would fit on another node without
            # the claim. In the same step it may have pods end on the node of that allocation, since
            # its RunPostFilterPlugins still sees the claim as it was.
            if is_crowded(world, pod, node) and world.refusals.spare(template, node):
                then = "tried once more, as others may be ending there for the pod"
            else:
                then = f"left out for {world.refusals.refuse(template, node):.0f} s"
            message = (
                f"the allocation on node {node} was taken back (kube-scheduler does that when pod "
                f"{pod} does not fit there): {node} is {then}"
            )
            world.reporter.on_claim(known, Obstacle(Reason.TAKEN_BACK, message), warning=False)


def _tell(tell: Callable[..., object], *args: object, **more: object) -> None:
    """Call ``tell`` with a change; its errors are logged, so that other calls are made too.

    Raises:
        NotLeadingError: nothing may be written any more.
    """
    try:
        tell(*args, **more)
    except NotLeadingError:
        raise
    except Exception:  # noqa: BLE001 - it may be anything
        _log.exception("a change was not understood", extra={"detail": repr(tell)[:_SHOWN]})
