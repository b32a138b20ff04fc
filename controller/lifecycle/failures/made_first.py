"""Pods that are bound only once their slices are made: the scheduling gate is lifted no sooner.

The slices are allocated, the node makes them ahead and says so in its MigNode, and only then
kube-scheduler may have the pod. What the node could not make is given up and placed elsewhere,
where no failure is remembered. It is for pods with the gate: by the configuration of their class
or claim, or where a slice could not be made lately. A node that says nothing is not waited for
longer than ``ANSWER_SECONDS``: it may make nothing ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from api.config import decode_bind_when
from controller.cluster.cluster import Cluster
from controller.lifecycle.failures.wishes import last_wish
from controller.lifecycle.giving_up import GivingUp
from controller.queue.failed_gpus import FailedGpus
from dra.claims.reading import KnownClaim
from dra.gpu.inventory import InstanceState, Inventory
from dra.gpu.names import DeviceNameError, MigDevice, parse_device
from dra.pods.pods import Pod

ANSWER_SECONDS = 30.0


class MadeFirst:
    """Gates that are held until slices are made. ``now`` gives monotonic seconds."""

    def __init__(
        self,
        cluster: Cluster,
        giving_up: GivingUp,
        failed_gpus: FailedGpus,
        *,
        now: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._giving_up = giving_up
        self._failed_gpus = failed_gpus
        self._now = now
        self._since: dict[str, float] = {}
        self._refused: dict[str, str] = {}

    def is_wished(self, config: Iterable[Mapping[str, Any]]) -> bool:
        """True if ``config`` (``devices.config``) asks for it; the last that names it counts."""
        return last_wish(config, decode_bind_when, driver=self._cluster.driver) == "made"

    def is_doubtful(self, node: str, devices: Iterable[str]) -> bool:
        """True if a slice could not be made lately on a GPU of one of ``devices``."""
        return any(self._failed_gpus.remembers(node, gpu) for gpu in map(_gpu, devices) if gpu)

    def holds(self, pod: Pod) -> float | None:
        """Hold the gate of ``pod``, which has all it wants; gives up what could not be made.

        Returns the monotonic time to look again, None if the gate is to be lifted.
        """
        waits = False
        for key in pod.claim_keys:
            known = self._cluster.claims.get(key)
            if known is None or not self._concerns(known):
                continue
            if self._gives_up(pod, known):
                return self._now() + ANSWER_SECONDS
            if not self._is_made(known):
                waits = True
                self._cluster.awaited.add(known.claim.ref.uid)
            else:
                self._cluster.awaited.discard(known.claim.ref.uid)
        if not waits:
            self._since.pop(pod.uid, None)
            return None
        end = self._since.setdefault(pod.uid, self._now()) + ANSWER_SECONDS
        return end if self._now() < end else None

    def forget(self, pod_uid: str) -> None:
        """The pod is gone."""
        self._since.pop(pod_uid, None)

    def forget_claim(self, claim_uid: str) -> None:
        """The claim is gone."""
        self._refused.pop(claim_uid, None)
        self._cluster.awaited.discard(claim_uid)

    def _concerns(self, known: KnownClaim) -> bool:
        allocation = known.claim.allocation
        if allocation is None or self._cluster.inventory(allocation.node) is None:
            return False
        devices = [d.device for d in allocation.of_driver(self._cluster.driver)]
        return bool(devices) and (
            self.is_wished(allocation.config) or self.is_doubtful(allocation.node, devices)
        )

    def _gives_up(self, pod: Pod, known: KnownClaim) -> bool:
        """Begin to give up a claim that its node could not make; True when that is under way."""
        inventory = self._inventory(known)
        uid = known.claim.ref.uid
        failed = next((f for f in inventory.failed_claims if f.claim.uid == uid), None)
        if failed is None or (self._refused.get(uid) == failed.time and not self._leaving(known)):
            return False
        self._refused[uid] = failed.time
        self._since.pop(pod.uid, None)
        message = (
            f"the allocation on node {inventory.node} is given up, as its slice could not be made "
            "there; it is placed elsewhere"
        )
        unused = [found for found, _ in self._giving_up.unused_of(pod) if found is known]
        for found in unused:
            self._giving_up.give_up(found, message)
        return bool(unused)

    def _leaving(self, known: KnownClaim) -> bool:
        """True if the first of the two steps of giving up is done, and the second is not."""
        return not known.claim.reserved_for

    def _is_made(self, known: KnownClaim) -> bool:
        """True if the node shows all slices of the claim as made."""
        inventory = self._inventory(known)
        made = {
            (gpu.name, instance.placement.start)
            for gpu in inventory.gpus
            for instance in gpu.instances
            if instance.claim is not None
            and instance.claim.uid == known.claim.ref.uid
            and instance.state is InstanceState.PREPARED
        }
        allocation = known.claim.allocation
        wanted = allocation.of_driver(self._cluster.driver) if allocation is not None else ()
        slices = (parse_device(d.device) for d in wanted)
        return all((s.gpu, s.start) in made for s in slices if isinstance(s, MigDevice))

    def _inventory(self, known: KnownClaim) -> Inventory:
        allocation = known.claim.allocation
        inventory = self._cluster.inventory(allocation.node) if allocation is not None else None
        if inventory is None:
            raise ValueError(f"{known.claim.ref} is not allocated on a node with a MigNode")
        return inventory


def _gpu(device: str) -> str:
    """The GPU of a slice; empty for a whole GPU and for what is not a device of ours."""
    try:
        parsed = parse_device(device)
    except DeviceNameError:
        return ""
    return parsed.gpu if isinstance(parsed, MigDevice) else ""
