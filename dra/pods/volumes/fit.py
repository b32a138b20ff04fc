"""Fit of a pod's volumes on a node, as kube-scheduler's plugins for volumes read them.

Not known here, and so found out by kube-scheduler's refusal: how much room a provisioner has, how
many volumes a node can attach, and topologies of which only the provisioner knows.
"""

from __future__ import annotations

from collections.abc import Iterator

from dra.claims.reasons import Obstacle, Reason
from dra.common.resources import Obj, ObjectKey, at
from dra.pods.company.residents import Residents
from dra.pods.nodefit import Misfit, MisfitReason, NodeFacts
from dra.pods.pods import Pod
from dra.pods.volumes.known import Volumes
from dra.pods.volumes.open_volumes import OpenVolumes, reaches
from dra.pods.volumes.values import Volume, VolumeClaim

_BETA = "failure-domain.beta.kubernetes.io"
_TODAY = "topology.kubernetes.io"
_ZONES = tuple(f"{domain}/{kind}" for domain in (_BETA, _TODAY) for kind in ("zone", "region"))
MOST_COMPARED = 100_000
"""Comparisons of claims with volumes that nobody has, for a decision: some 100 ms.

The claims that would be compared with more are left to kube-scheduler.
"""

_SEPARATOR = "__"
"""Between the zones of a volume that is in several."""


def find_obstacle(pod: Pod, volumes: Volumes) -> Obstacle | None:
    """The claim that keeps ``pod`` from every node: it is missing or ends, or lacks its volume."""
    if not volumes.listed:
        return None
    for name, owned in pod.volume_claims:
        claim = volumes.claims.get((pod.key[0], name))
        if claim is not None:
            problem = _problem(claim, pod, volumes, owned=owned)
        else:
            problem = "is not made yet by Kubernetes" if owned else "does not exist: create it"
        if problem:
            return Obstacle(Reason.VOLUME_CLAIM, f"PersistentVolumeClaim {name} {problem}")
    return None


class VolumeFit:
    """The nodes on which the volumes of one pod are or could be; good until anything changes."""

    def __init__(self, pod: Pod, volumes: Volumes, residents: Residents) -> None:
        self._pod = pod
        self._volumes = volumes
        self._residents = residents
        claims = [*volumes.claims_of(pod)]
        found = (volumes.volumes.get(claim.volume) for claim in claims if claim.bound)
        self._bound = [volume for volume in found if volume is not None]
        late = (claim for claim in claims if volumes.is_late(claim))
        self._late = sorted(late, key=lambda c: (c.wish.size, c.key))
        self._shared: dict[str, str] = {}
        self._taken = ""
        self._open: dict[ObjectKey, OpenVolumes | None] = {}
        self._left = MOST_COMPARED
        for claim in claims:
            for other in residents.users(claim.key):
                self._meet(claim, other)

    def find_misfit(self, node: NodeFacts) -> Misfit | None:
        """Misfit of a volume of the pod and ``node``; None when all can."""
        text = self._taken or self._elsewhere(node) or self._unmade(node)
        return Misfit(MisfitReason.VOLUME, text) if text else None

    def _meet(self, claim: VolumeClaim, other: Pod) -> None:
        """Take into account that ``other``, which is on a node, uses ``claim`` too."""
        if other.key == self._pod.key:
            return
        if claim.for_one_pod:
            self._taken = f"PersistentVolumeClaim {claim.key[1]} is ReadWriteOncePod and in use"
        place = self._residents.find(other.key)
        if self._volumes.is_late(claim) and place is not None:
            self._shared[claim.key[1]] = place[0]

    def _elsewhere(self, node: NodeFacts) -> str:
        for volume in self._bound:
            if not reaches(volume, node) or not _in_zone(volume, node):
                return "volume node affinity does not match"
        for claim in self._late:
            where = claim.selected_node or self._shared.get(claim.key[1], node.name)
            if where != node.name:
                return f"the volume of PersistentVolumeClaim {claim.key[1]} is made elsewhere"
        return ""

    def _unmade(self, node: NodeFacts) -> str:
        """Find volumes for the claims that wait for a node: what others may get first is gone."""
        if not self._late:
            return ""
        chosen: set[str] = set()
        for claim in self._before(node):
            self._find(claim, node, chosen)
        makes: dict[str, bool] = {}
        for claim in self._late:
            made = bool(claim.selected_node) or not self._find(claim, node, chosen)
            name = claim.wish.class_name
            if made and name not in makes:
                makes[name] = self._can_make(name, node)
            if made and not makes[name]:
                return f"no volume of class {name} for the node"
        return ""

    def _before(self, node: NodeFacts) -> Iterator[VolumeClaim]:
        """The claims of pods that are about to come to ``node``."""
        own = {claim.key for claim in self._late}
        for other in self._residents.on(node.name):
            if not other.node and other.key != self._pod.key:
                for claim in self._volumes.claims_of(other):
                    if self._volumes.is_late(claim) and claim.key not in own:
                        yield claim

    def _find(self, claim: VolumeClaim, node: NodeFacts, chosen: set[str]) -> bool:
        """Choose a volume that is there for ``claim``: the one meant for it, or the smallest."""
        there = self._there(claim)
        if there is None:
            return True
        found = next((v for v in there.on(node) if v.name not in chosen), None)
        if found is not None:
            chosen.add(found.name)
        return found is not None

    def _there(self, claim: VolumeClaim) -> OpenVolumes | None:
        """The volumes that ``claim`` may be bound to; None where they are too many to be read."""
        if claim.key not in self._open:
            self._open[claim.key] = self._look_up(claim)
        return self._open[claim.key]

    def _look_up(self, claim: VolumeClaim) -> OpenVolumes | None:
        if meant := self._volumes.meant_for(claim):
            return OpenVolumes(meant)
        self._left -= self._volumes.breadth(claim)
        return self._volumes.open_to(claim) if self._left >= 0 else None

    def _can_make(self, class_name: str, node: NodeFacts) -> bool:
        known = self._volumes.classes.get(class_name)
        if known is None or not known.makes:
            return False
        return not known.topologies or any(_allows(term, node) for term in known.topologies)


def _allows(term: Obj, node: NodeFacts) -> bool:
    """True if a term of a class allows volumes where ``node`` is; an empty one does nowhere."""
    required = at(term, "matchLabelExpressions")
    return bool(required) and all(node.labels.get(r["key"]) in r["values"] for r in required)


def _problem(claim: VolumeClaim, pod: Pod, volumes: Volumes, *, owned: bool) -> str:
    """Obstacle that keeps a claim from being used, "" where nothing does."""
    if claim.lost:
        return f"has lost its volume {claim.volume}: delete it and create it anew"
    if claim.deleting:
        return "is being deleted"
    if owned and claim.owner != pod.uid:
        return "was not made for this pod: delete it"
    if claim.bound and claim.volume not in volumes.volumes:
        return f"is bound to volume {claim.volume}, which does not exist"
    if not claim.bound and not volumes.is_late(claim):
        return "is not bound to a volume yet"
    return ""


def _in_zone(volume: Volume, node: NodeFacts) -> bool:
    """True if labels of a volume say its zone, and the node's is another."""
    if not any(key in node.labels for key in _ZONES):
        return True
    for key in _ZONES:
        if key in volume.labels:
            here = node.labels.get(key, node.labels.get(key.replace(_BETA, _TODAY)))
            if here not in volume.labels[key].split(_SEPARATOR):
                return False
    return True
