"""Refusals: the nodes and GPUs that are left out for a while, and the reasons.

kube-scheduler takes an allocation back if the pod does not fit the node for a reason that only
kube-scheduler sees. The node is then left out for the pod's template, longer each time. A change of
the node ends that early, but not sooner than a second after the first refusal, and twice as long
after each further one. The count of refusals stays, so that nodes that change all the time cause
no hot loop.

Pods of one template are likely to be refused alike. A template is tried first on nodes that took
one of its pods, and on nodes whose zone, region and instance type were never refused. Next come
nodes for whose zone, region and type as many nodes took a pod as refused one, and then all nodes
that have not refused. A refusal counts less once another driver offers something else on the node,
as that may have been its cause.

A GPU on which a slice could not be made is left out for all pods, if nothing shows the cause. A
visible cause, such as an instance in the way or a lost GPU, keeps the GPU from being used anyway. A
failure that is the claim's own fault says nothing of the GPU, and repeated failures of one claim
count once: otherwise whoever writes claims could take GPUs out of use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from math import inf

from controller import times
from controller.cluster.cluster import Cluster
from controller.cluster.records import Refusal, TemplateRecord
from controller.queue.refused import About, Refused
from dra.claims.reasons import Obstacle, Reason
from dra.gpu.holdings import find_blocker
from dra.gpu.inventory import FailedClaim, Inventory
from dra.gpu.names import DeviceNameError, MigDevice, parse_device
from dra.pods.nodefit import NodeFacts

TOPOLOGIES = (
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
)
"""Labels of nodes; a refusal by a node makes one by nodes with an equal label more likely."""

MOST = 50_000
"""Upper bound on the templates and nodes that are remembered: some 300 bytes each."""

_TEMPLATES = 4096
"""Upper bound on the templates alone."""

BY_SCHEDULER = "kube-scheduler took an allocation there back; left out for a while"
_BY_SCHEDULER = Obstacle(Reason.TAKEN_BACK, BY_SCHEDULER)
BY_GPU = "a slice could not be made on it lately; it is tried again after a while"


_NOTHING = TemplateRecord()


class Refusals:
    """Nodes left out by template, and GPUs left out by node. Not thread-safe.

    Templates are those of ``KnownPods.template``. If there are too many, those are forgotten whose
    last refusal is the oldest. ``now`` gives monotonic seconds.
    """

    def __init__(self, cluster: Cluster, refused: Refused, now: Callable[[], float]) -> None:
        self._cluster = cluster
        self._refused = refused
        self._now = now
        self._templates: dict[str, TemplateRecord] = {}
        self._gpus_out: set[tuple[str, str]] = set()

    def find(self, template: str) -> TemplateRecord | None:
        """The record of a template; None without one."""
        return self._templates.get(template)

    def record(self, template: str) -> TemplateRecord:
        """The record of a template; a missing one is made."""
        if template not in self._templates:
            while len(self._templates) >= _TEMPLATES:
                del self._templates[next(iter(self._templates))]
            self._templates[template] = TemplateRecord()
        return self._templates[template]

    def records(self) -> Iterable[TemplateRecord]:
        """All records."""
        return self._templates.values()

    # -- nodes

    def spare(self, template: str, node: str) -> bool:
        """Let a refusal by ``node`` pass; returns False if one was let pass before."""
        self._forget_old()
        known = self.record(template)
        if node in known.spared:
            return False
        known.spared[node] = self._now()
        return True

    def refuse(self, template: str, node: str, why: Obstacle = _BY_SCHEDULER) -> float:
        """Leave ``node`` out for a template; returns the seconds for which it is left out.

        Allocations that are taken back at about the same time count as one refusal.
        """
        now = self._now()
        self._forget_old()
        known = self.record(template)
        self._templates[template] = self._templates.pop(template)
        refusal = known.refused.get(node)
        if refusal is None:
            pause = times.growing(times.NODE_REFUSED)
            refusal = known.refused[node] = Refusal(why, -inf, pause=pause)
        refusal.why = why
        seconds = refusal.until - now
        if now - refusal.at >= times.SAME_REFUSAL:
            refusal.changed = False
            seconds = refusal.again(now)
        while len(self._templates) > 1 and sum(t.size for t in self._templates.values()) > MOST:
            del self._templates[next(iter(self._templates))]
        return seconds

    def excluded(self, template: str) -> dict[str, str]:
        """The nodes that are left out for a template now, with the reason."""
        now, refused = self._now(), self._of(template).refused
        return {node: r.why.message for node, r in refused.items() if r.until > now}

    def next_end(self, template: str) -> float | None:
        now, refused = self._now(), self._of(template).refused.values()
        return min((r.until for r in refused if r.until > now), default=None)

    def ease(self, node: str) -> None:
        for known in self._templates.values():
            if (refusal := known.refused.get(node)) is not None:
                _ease(refusal)

    def renew(self, node: str) -> None:
        """Note that another driver offers something else on ``node``; if empty, on any node.

        The node is let in again soon, and is not tried last any more.
        """
        for known in self._templates.values():
            for name in (node,) if node else known.refused:
                if (refusal := known.refused.get(name)) is not None:
                    _ease(refusal)
                    refusal.changed = True

    def bound(self, template: str, node: str) -> None:
        """Note that a pod of a template was bound to ``node``; earlier refusals are forgotten."""
        known = self._of(template)
        if known.refused or known.taken:
            known.refused.pop(node, None)
            known.taken.add(node)

    def tried_last(
        self, template: str, nodes: Mapping[str, NodeFacts], unproven: AbstractSet[str]
    ) -> Iterator[AbstractSet[str]]:
        """Sets of nodes to leave out in one attempt after the other, until one finds a place.

        ``nodes``: all nodes. ``unproven``: nodes on which other pods of the template are unproven.
        Yields nothing if no node has refused the template.
        """
        known = self._of(template)
        old = {name for name, refusal in known.refused.items() if refusal.changed} & nodes.keys()
        refused = known.refused.keys() & nodes.keys() - old
        taken = known.taken & nodes.keys()
        if not refused:
            return
        refusals = Counter(place for name in refused for place in _places(nodes[name]))
        more = Counter(place for name in taken for place in _places(nodes[name]))
        left = nodes.keys() - refused
        untouched = {n for n in left if not any(refusals[p] for p in _places(nodes[n]))}
        mixed = {n for n in left if all(refusals[p] <= more[p] for p in _places(nodes[n]))}
        first = (left & taken) | untouched | old
        for suit in dict.fromkeys((frozenset(first), frozenset(first | mixed), frozenset(left))):
            for better in dict.fromkeys((suit - (unproven - taken), suit)):
                if better:
                    yield nodes.keys() - better

    def _of(self, template: str) -> TemplateRecord:
        return self._templates.get(template, _NOTHING)

    def _forget_old(self) -> None:
        """Forget refusals that were not repeated for long."""
        since = self._now() - times.NODE_REFUSED[1]
        for known in self._templates.values():
            known.forget_nodes(since)

    # -- GPUs

    @property
    def due(self) -> float:
        """The monotonic time at which the next GPU is let in again; inf if none is."""
        found = (self._refused.find(About.GPU, gpu) for gpu in self._gpus_out)
        return min((r.until if r is not None else -inf for r in found), default=inf)

    def remembers(self, node: str, devices: Iterable[str]) -> bool:
        """True if a slice could not be made lately on a GPU of one of the ``devices`` of a node."""
        gpus, long = ((node, _gpu_of(device)) for device in devices), times.GPU_FAILED[1]
        return any(self._refused.knows(About.GPU, gpu, within=long) for gpu in gpus)

    def prove(self, node: str, devices: Iterable[str]) -> None:
        """Note that slices were made on GPUs of a node which had been let in again."""
        for device in devices:
            self._refused.prove(About.GPU, (node, _gpu_of(device)))

    def note_failures(self, node: str) -> None:
        """Leave out the GPUs of failed Prepares in a node's MigNode that were not noted before."""
        inventory = self._cluster.inventory(node)
        for failed in inventory.failed_claims if inventory is not None else ():
            gpu = _failed_gpu(failed, inventory, self._cluster) if inventory is not None else ""
            if not gpu:
                continue
            record = self._cluster.claim_index.record(failed.claim)
            if failed.gpu not in record.refused_by:
                record.refused_by |= {failed.gpu}
                self.leave_out(node, gpu)

    def leave_out(self, node: str, gpu: str) -> None:
        """Leave out ``gpu-<minor>`` of a node, on which a slice could not be made."""
        self._refused.again(About.GPU, (node, gpu), pauses=times.GPU_FAILED)
        self._gpus_out.add((node, gpu))
        self._cluster.fleet.leave_out(node, gpu, BY_GPU)

    def expire(self) -> None:
        """Let in again the GPUs that were out for long enough."""
        for node, gpu in [*self._gpus_out]:
            if self._refused.find(About.GPU, (node, gpu)) is None:
                self._gpus_out.discard((node, gpu))
                self._cluster.fleet.leave_out(node, gpu, "")
                self._cluster.make_room(node)


def _ease(refusal: Refusal) -> None:
    """Let a node in again soon: the later, the more often it has refused."""
    failures = refusal.pause.failures if refusal.pause is not None else 0
    soon = times.NODE_REFUSED_SHORTEST * 2.0 ** min(failures - 1, 16)
    refusal.until = min(refusal.until, refusal.at + soon)


def _places(node: NodeFacts) -> Iterator[tuple[str, str]]:
    return ((key, node.labels[key]) for key in TOPOLOGIES if key in node.labels)


def _failed_gpu(failed: FailedClaim, inventory: Inventory, cluster: Cluster) -> str:
    """The GPU on which a claim's slice failed if nothing shows the cause; otherwise empty."""
    ref = failed.claim
    known = cluster.claims.get(ref.key)
    allocation = known.claim.allocation if known is not None else None
    if known is None or allocation is None or known.claim.ref.uid != ref.uid:
        return ""
    if not failed.gpu or allocation.node != inventory.node:
        return ""
    devices = [d.device for d in allocation.of_driver(cluster.driver)]
    if any(find_blocker(device, ref.uid, inventory) for device in devices):
        return ""
    gpus = {gpu.name for gpu in inventory.gpus if gpu.uuid == failed.gpu}
    return next((gpu for gpu in map(_gpu_of, devices) if gpu in gpus), "")


def _gpu_of(device: str) -> str:
    try:
        found = parse_device(device)
    except DeviceNameError:
        return ""
    return found.gpu if isinstance(found, MigDevice) else ""
