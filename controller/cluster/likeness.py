"""Pods that are alike: what kube-scheduler answers to one of them it answers to the others.

Those of one owner are. So are pods without an owner that wait for another driver too, if they are
of one namespace and ask the same of their node, of us and of that driver: where it has devices is
the same for all of them. Namespaces learn nothing of each other, nor mislead each other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from dra.claims.claims import Claim
from dra.claims.classes import DeviceClass
from dra.claims.reader import KnownClaim
from dra.common.cache import BoundedCache
from dra.common.resources import ObjectKey
from dra.pods.pods import Pod

_MOST = 10_000
"""Upper bound on the pods whose template is remembered: some hundred bytes each."""

_WHERE = ("nodeSelector", "affinity", "tolerations", "topologySpreadConstraints", "priority")
"""Parts of a pod's spec that say where it may go, besides what it takes there."""


class Likeness:
    """Templates of pods: what is learnt of one pod holds for all with the same template.

    ``claims`` and ``classes`` are those of the cluster. Not thread-safe.
    """

    def __init__(
        self, claims: Mapping[ObjectKey, KnownClaim], classes: Mapping[str, DeviceClass]
    ) -> None:
        self._claims = claims
        self._classes = classes
        self._known: BoundedCache[str, str] = BoundedCache(_MOST)

    def template(self, pod: Pod) -> str:
        """Text that is equal for pods that are alike; the UID of a pod that is like no other."""
        if pod.template != pod.uid or len(pod.claims) <= 1:
            return pod.template
        known = self._known.find(pod.uid)
        if known is None:
            known = self._digest(pod)
            if known is None:
                return pod.uid
            self._known.put(pod.uid, known)
        return known

    def _digest(self, pod: Pod) -> str | None:
        """Template of a pod without an owner; None while one of its claims is missing."""
        found = [self._claims.get(key) for key in pod.claim_keys]
        claims = [known for known in found if known is not None]
        if None in pod.claims.values() or len(claims) < len(found):
            return None
        if all(self._may_be_ours(known.claim) for known in claims):
            return pod.uid
        asked = sorted(msgspec.json.encode(known.obj["spec"], order="sorted") for known in claims)
        spec, needs = pod.obj["spec"], pod.needs
        where = [spec.get(field) for field in _WHERE]
        takes = (needs.requests, needs.host_ports, pod.volume_claims)
        said = msgspec.json.encode((pod.key[0], where, takes, asked), order="sorted")
        return hashlib.sha256(said).hexdigest()

    def _may_be_ours(self, claim: Claim) -> bool:
        named = (choice.class_name for r in claim.requests for choice in r.choices)
        found = (self._classes.get(name) for name in named if name)
        return all(known is None or known.names_us for known in found)
