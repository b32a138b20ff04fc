"""Pods that may still use the devices of a claim that kubelet was told of: decided here alone.

Proof that a claim's containers have ended is kubelet's Unprepare, unless a pod of the namespace
still runs that kubelet no longer lists: kubelet unprepares the claims of a pod that was deleted by
force within a minute (pkg/kubelet/cm/dra/manager.go: reconcileLoop), while its containers run on
for the grace of its spec (pkg/kubelet/pod_workers.go: calculateEffectiveGracePeriod). Neither the
absence of a claim nor an empty list of processes of NVML proves anything.
"""

from __future__ import annotations

from collections.abc import Iterator

from cdi.spec import claim_kind
from dra.claims.allocation import AllocatedDevice
from dra.gpu.inventory import ClaimRef
from kubeletplugin.claims.lookup import ClaimFate, Given
from kubeletplugin.errors import HostError
from kubeletplugin.host.podresources import PodDevices, PodResources, unlisted_pods
from kubeletplugin.host.processes import logged_pods, running_pods
from kubeletplugin.host.roots import Roots

_UID = 36
"""Length of the UID with which the CDI names of a claim's devices begin."""


class Holders:
    """Asks kubelet and the node. Thread-safe."""

    def __init__(self, roots: Roots, kubelet: PodResources, *, driver: str) -> None:
        self._roots = roots
        self._kubelet = kubelet
        self._driver = driver
        self._prefix = f"{claim_kind(driver)}="

    def of(self, ref: ClaimRef, fate: ClaimFate | None = None) -> str:
        """Text on who may still use the claim's devices; empty if nobody does.

        ``fate``: state of the claim if kubelet has not unprepared it, None if it has. Of a claim
        that is gone, any pod of the namespace may be a holder: kubelet does not tell what init
        containers have.
        """
        found = logged_pods(self._roots).items()
        logged = [uid for uid, (namespace, _) in found if namespace == ref.namespace]
        if fate is None and not (
            self._kubelet.socket.exists() and any(running_pods(self._roots, logged))
        ):
            return ""
        try:
            pods = [p for p in self._kubelet.pods() if p.namespace == ref.namespace]
        except HostError as error:
            return f"nobody knows whether pods still use it: {error}"
        if left := unlisted_pods(self._roots, pods, ref.namespace):
            return f"pod {', '.join(left)} was deleted by force and its containers still run"
        if fate is None:
            return ""
        named = [p for p in pods if fate is ClaimFate.GONE or self._has(p, ref)]
        names = ", ".join(f"{p.namespace}/{p.name}" for p in named)
        return f"pod {names} is still on this node, as kubelet says" if named else ""

    def given(self) -> Iterator[Given]:
        """The driver's devices that kubelet gives to pods, of claims that may be gone.

        Raises:
            HostError: kubelet does not answer.
        """
        if not self._kubelet.socket.exists():
            return
        for pod in self._kubelet.pods():
            ours = [d for d in pod.claim_devices if d.driver == self._driver]
            for each in ours:
                if not (uid := self._uid(each.cdi_ids)):
                    continue
                device = AllocatedDevice(
                    "", each.driver, each.pool, each.device, share_id=each.share_id
                )
                total = sum(self._uid(d.cdi_ids) == uid for d in ours)
                claim = ClaimRef(pod.namespace, each.claim, uid)
                yield Given(claim, device, total, is_reserved=True)

    def _has(self, pod: PodDevices, ref: ClaimRef) -> bool:
        uids = {self._uid(d.cdi_ids) for d in pod.claim_devices if d.driver == self._driver}
        return ref.uid in uids

    def _uid(self, cdi_ids: tuple[str, ...]) -> str:
        own = [i for i in cdi_ids if i.startswith(self._prefix)]
        return own[-1].removeprefix(self._prefix)[:_UID] if own else ""
