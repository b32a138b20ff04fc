"""Consequences of changes: what the parts of the engine are told, and what is looked at."""

from __future__ import annotations

import logging
from collections.abc import Callable

from controller.cluster.cluster import Cluster
from controller.cluster.effects import Effects, TakenBack
from controller.keeping.classsync import ClassSync
from controller.keeping.nodeclasses import NodeClasses
from controller.keeping.nodelabels import NodeLabels
from controller.keeping.templatesync import TemplateSync
from controller.lifecycle.allocation_writes import AllocationWrites
from controller.lifecycle.reserving.reservation_writes import ReservationWrites
from controller.lifecycle.upkeep import Upkeep
from controller.queue.exclusions import Exclusions
from controller.queue.failed_gpus import FailedGpus
from controller.queue.overtaking.fairness import WaitingLine
from controller.queue.unproven import Unproven
from controller.reporting.report import Reporter
from controller.serving.agenda import Agenda
from controller.serving.gangs.service import Gangs
from controller.serving.placing import Placing
from controller.writing.leader_requests import NotLeadingError
from dra.allocator.allocate import Allocator
from dra.claims.reasons import Obstacle, Reason
from dra.common.resources import ObjectKey
from dra.pods.pods import Pod
from dra.pods.rules import find_victims

_log = logging.getLogger(__name__)


class Consequences:
    """Takes effects of changes."""

    def __init__(  # noqa: PLR0913 - whom it tells
        self,
        cluster: Cluster,
        agenda: Agenda,
        allocator: Allocator,
        *,
        placing: Placing,
        gangs: Gangs,
        line: WaitingLine,
        exclusions: Exclusions,
        unproven: Unproven,
        failed_gpus: FailedGpus,
        allocations: AllocationWrites,
        upkeep: Upkeep,
        reservations: ReservationWrites,
        classes: ClassSync,
        templates: TemplateSync,
        labels: NodeLabels,
        node_classes: NodeClasses,
        reporter: Reporter,
    ) -> None:
        self._cluster = cluster
        self._agenda = agenda
        self._allocator = allocator
        self._placing = placing
        self._gangs = gangs
        self._line = line
        self._exclusions = exclusions
        self._unproven = unproven
        self._failed_gpus = failed_gpus
        self._allocations = allocations
        self._upkeep = upkeep
        self._reservations = reservations
        self._classes = classes
        self._templates = templates
        self._labels = labels
        self._node_classes = node_classes
        self._reporter = reporter

    def take(self) -> bool:
        """Turn what has changed into work; False when nothing has.

        It may have effects of its own: who leaves the line releases what was held back for it.
        """
        if not self._cluster.has_effects:
            return False
        effects = self._cluster.take_effects()
        for taken in effects.taken_back:
            _tell(self._refuse, taken)
        _tell(self._doubt_refusals, effects)
        for node in effects.failures:
            _tell(self._failed_gpus.note, node)
        _tell(self._reservations.note, effects.reserved)
        for uid in effects.gone_pods:
            _tell(self._forget_pod, uid)
        for uid in effects.gone_claims:
            _tell(self._forget_claim, uid)
        _tell(self._gangs.forget, effects.gone_gangs)
        for key in effects.claims:
            _tell(self._claim_changed, key)
        for key in effects.pods:
            _tell(self._pod_changed, key, is_bound_now=key in effects.bound)
        if effects.classes:
            _tell(self._classes_changed)
        _tell(self._templates.note, effects)
        _tell(self._labels.note, effects)
        _tell(self._node_classes.note, effects)
        _tell(self._make_room, effects)
        if effects.labels:
            _tell(self._reporter.unreadable, self._cluster.unreadable)
        return True

    def _claim_changed(self, key: ObjectKey) -> None:
        self._allocations.notice(key)
        self._agenda.add_claim(key)

    def _doubt_refusals(self, effects: Effects) -> None:
        """Nodes that kube-scheduler refused may suit now."""
        for node in effects.nodes:
            self._exclusions.ease(node)
        for node in effects.others:
            self._exclusions.renew(node)
            self._cluster.make_room(*([node] if node else ()))

    def _pod_changed(self, key: ObjectKey, *, is_bound_now: bool) -> None:
        pod = self._cluster.pods.get(key)
        if pod is not None and is_bound_now:
            self._exclusions.bound(self._cluster.template_of(pod), pod.node)
            self._unproven.prove(pod.uid)
        if not self._agenda.add_pod(key) and pod is not None and pod.claims:
            self._reporter.left(pod)
            self._line.leaves(pod.uid)
            self._upkeep.cut_first.end(pod.uid)

    def _forget_pod(self, uid: str) -> None:
        self._exclusions.forget(uid)
        self._unproven.forget(uid)
        self._allocations.forget_pod(uid)
        self._upkeep.forget(uid)
        self._reporter.forget(pod_uid=uid, gone=True)
        self._line.leaves(uid)

    def _forget_claim(self, uid: str) -> None:
        self._reporter.forget(claim_uid=uid)
        self._allocations.forget_claim(uid)
        self._upkeep.prepare_retries.forget_claim(uid)
        self._failed_gpus.forget_claim(uid)
        self._line.forget_claim(uid)

    def _classes_changed(self) -> None:
        self._allocator.delegated = frozenset(
            c.extended_resource for c in self._cluster.classes.values() if c.extended_resource
        )
        self._classes.request()

    def _make_room(self, effects: Effects) -> None:
        anywhere = effects.room_anywhere or effects.classes
        room = effects.room & self._cluster.fleet.nodes.keys()
        if room or anywhere:
            self._line.note_room(room)
            self._placing.make_room(room, anywhere=anywhere)
            self._agenda.pods.room_made()

    def _refuse(self, taken: TakenBack) -> None:
        """Somebody took an allocation back: that node does not suit the pods that wait for it."""
        known = self._cluster.claims.get(taken.claim)
        for pod in self._cluster.pods_of(taken.claim):
            if pod.pending and not pod.node and known is not None:
                self._unproven.refute(pod.uid)
                template = self._cluster.template_of(pod)
                if self._is_crowded(pod, taken.node) and self._exclusions.spare(
                    template, taken.node
                ):
                    then = "tried once more, as others may be ending there for the pod"
                else:
                    then = f"left out for {self._exclusions.refuse(template, taken.node):.0f} s"
                message = (
                    f"the allocation on node {taken.node} was taken back (kube-scheduler does that "
                    f"when pod {pod} does not fit there): {taken.node} is {then}"
                )
                obstacle = Obstacle(Reason.TAKEN_BACK, message)
                self._reporter.on_claim(known.obj, obstacle, warning=False)

    def _is_crowded(self, pod: Pod, node: str) -> bool:
        """True if others have to end for ``pod`` on ``node``.

        kube-scheduler takes an allocation back when the pod would fit on another node but for its
        claim, and has others end where that was in the same breath (``RunPostFilterPlugins``, with
        the claim as it was before).
        """
        facts = self._cluster.hosts.facts.get(node)
        delegated = self._allocator.delegated
        return (
            facts is not None
            and pod.needs.preempts
            and bool(find_victims(pod, facts, self._cluster.hosts, delegated=delegated))
        )


def _tell(tell: Callable[..., object], *args: object, **more: object) -> None:
    """Tell a part of one change; what it raises keeps no other part, and no other change, away.

    Raises:
        NotLeadingError: nothing may be written any more.
    """
    try:
        tell(*args, **more)
    except NotLeadingError:
        raise
    except Exception:  # noqa: BLE001 - it may be anything
        _log.exception("a change was not understood", extra={"detail": repr(tell)[:_SHOWN]})


_SHOWN = 200
