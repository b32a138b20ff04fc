"""Pods of the mirrored cluster, by name and by claim, charged to the nodes that they go to."""

from __future__ import annotations

from controller.cluster.effects import Effects
from controller.cluster.known_claims import KnownClaims
from controller.cluster.known_gangs import KnownGangs
from controller.cluster.trimming.spec_cache import Sharing
from controller.cluster.watchers import Watchers
from dra.claims.claims import made_for
from dra.common.cache import Index
from dra.common.resources import Obj, ObjectKey, at
from dra.pods.pods import Pod, read_pod, with_claim
from dra.pods.residents import Hosts


class KnownPods:
    """Pods by namespace and name. Each is charged to its node in ``hosts``."""

    def __init__(
        self,
        hosts: Hosts,
        claims: KnownClaims,
        watchers: Watchers,
        effects: Effects,
        sharing: Sharing,
    ) -> None:
        self.by_key: dict[ObjectKey, Pod] = {}
        self._hosts = hosts
        self._watchers = watchers
        self._claims = claims
        self._effects = effects
        self._sharing = sharing
        self._of_claim: Index[ObjectKey, ObjectKey] = Index()
        self._overdue: dict[ObjectKey, str] = {}
        """Nodes that pods are charged to no more, as nobody has bound them there."""
        self.gangs = KnownGangs(claims.finalizer, effects)

    def set(self, obj: Obj) -> None:
        """A pod was added or changed."""
        pod = read_pod(obj, self._sharing.needs)
        before = self.by_key.get(pod.key)
        if before is not None and before.uid != pod.uid:
            self.remove(pod.key)
            before = None
        self._take(pod if before is None else self._as_made(pod, before), before)

    def adopt(self, claim: Obj) -> None:
        """Take a claim as that of the pod which it was made for, whose status names none yet."""
        made = made_for(claim)
        metadata = claim["metadata"]
        pod = self.by_key.get((metadata["namespace"], made.pod)) if made else None
        if made and pod and pod.uid == made.uid and pod.claims.get(made.entry, "") is None:
            self._take(with_claim(pod, made.entry, metadata["name"]), pod)

    def _as_made(self, pod: Pod, before: Pod) -> Pod:
        """``pod`` with the claims that were adopted for it and that its status still does not name.

        One that is gone is not its claim any more: another will be made.
        """
        for entry in [e for e, name in pod.claims.items() if name is None]:
            name = before.claims.get(entry)
            if name is not None and (pod.key[0], name) in self._claims.by_key:
                pod = with_claim(pod, entry, name)
        return pod

    def _take(self, pod: Pod, before: Pod | None) -> None:
        self.by_key[pod.key] = pod
        self._link(pod.key, before.claim_keys if before else (), pod.claim_keys)
        self._watchers.change(before, pod)
        self.gangs.change(pod.key, pod)
        self._charge(pod, was=before)
        if before is None or not self._is_on_its_way(before, pod):
            self._effects.pods.add(pod.key)
        if pod.node and (before is None or not before.node):
            self._effects.bound.add(pod.key)
        if before is not None and before.live and not pod.live:
            self._effects.claims.update(pod.claim_keys)

    def _is_on_its_way(self, before: Pod, pod: Pod) -> bool:
        """True if all that is new is that kube-scheduler is about to bind ``pod`` as we allocated.

        It says so of each pod with claims before it binds it (``NominatedNodeNameForExpectation``).
        """
        if not pod.nominated:
            return False
        claims = [self._claims.by_key.get(key) for key in pod.claim_keys]
        return (
            all(known is not None and known.claim.allocation is not None for known in claims)
            and pod.nominated == self._claims.node_of(pod.claim_keys)
            and _beside_nomination(before) == _beside_nomination(pod)
        )

    def remove(self, key: ObjectKey) -> None:
        """A pod is gone."""
        pod = self.by_key.pop(key, None)
        if pod is None:
            return
        self._link(key, pod.claim_keys, ())
        self._overdue.pop(key, None)
        self._watchers.change(pod, None)
        self.gangs.change(key, None)
        self._place(pod, "", was=pod)
        self._effects.claims.update(pod.claim_keys)
        self._effects.gone_pods.add(pod.uid)

    def of_claim(self, claim: ObjectKey) -> list[Pod]:
        """The pods that refer to a claim."""
        return [self.by_key[key] for key in self._of_claim.of(claim)]

    def touch(self, claim: ObjectKey) -> None:
        """Have the pods of a claim looked at: the claim has changed."""
        self.recharge(claim)
        self._effects.pods.update(self._of_claim.of(claim))

    def recharge(self, claim: ObjectKey) -> None:
        """Charge the pods of a claim to where its allocation sends them now."""
        for key in self._of_claim.of(claim):
            self._charge(self.by_key[key])

    def end_charge(self, key: ObjectKey) -> None:
        """Charge a pod that is not bound no more to where its allocation sends it."""
        pod = self.by_key[key]
        if node := self.sent_to(pod):
            self._overdue[key] = node
            self._charge(pod)

    def _charge(self, pod: Pod, *, was: Pod | None = None) -> None:
        """Charge a pod to the node where it is, or where our allocation sends it for a while."""
        node = pod.node if pod.live else ""
        if not pod.node:
            node = self.sent_to(pod)
            if not node or node == self._overdue.get(pod.key):
                node = ""
            else:
                self._overdue.pop(pod.key, None)
        self._place(pod, node, was=was)

    def sent_to(self, pod: Pod) -> str:
        """The node that was decided for a pod: where another pod's claim is, says nothing of it."""
        return self._claims.node_of(pod.claim_keys, pod.uid) if pod.pending else ""

    def _place(self, pod: Pod, node: str, *, was: Pod | None) -> None:
        residents = self._hosts.residents
        version = residents.version
        self._made_room(self._hosts.place(pod, node), was=was)
        if residents.version != version:
            self._effects.pods.update(self._watchers.of_company(pod, was))

    def _made_room(self, node: str, *, was: Pod | None) -> None:
        """A pod left ``node``. If it was bound there, the scheduler may think anew about it."""
        if node:
            self._effects.room.add(node)
        if node and was is not None and was.node == node:
            self._effects.nodes.add(node)

    def _link(
        self, pod: ObjectKey, before: tuple[ObjectKey, ...], after: tuple[ObjectKey, ...]
    ) -> None:
        for claim in before:
            if claim not in after:
                self._of_claim.discard(claim, pod)
        for claim in after:
            self._of_claim.add(claim, pod)


def _beside_nomination(pod: Pod) -> tuple[Obj, ...]:
    """All that is known of a pod, but for the node that it is nominated for."""
    status = {
        k: v for k, v in at(pod.obj, "status", default={}).items() if k != "nominatedNodeName"
    }
    return pod.obj["metadata"], at(pod.obj, "spec", default={}), status
