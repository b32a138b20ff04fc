"""GPUs that are left out for a while, as they refused a slice and nothing shows why.

What shows, such as an instance in the way or a GPU that is lost, keeps the fleet from using a GPU
anyway. What fails for a claim's own sake says nothing of its GPU, and a GPU that refuses one claim
again and again has refused one: else whoever writes claims could take GPUs out of use. A GPU stays
out for 20 seconds to 10 minutes, as :mod:`dra.kube.timing` says.
"""

from __future__ import annotations

from collections.abc import Callable

from controller.cluster.cluster import Cluster
from dra.gpu.holdings import find_blocker
from dra.gpu.inventory import FailedClaim, Inventory
from dra.gpu.names import DeviceNameError, MigDevice, parse_device
from dra.kube.timing import LeftOut

REASON = "a slice could not be made on it lately; it is tried again after a while"


class FailedGpus:
    """Failures by node and GPU. ``now`` gives monotonic seconds. Not thread-safe."""

    def __init__(self, cluster: Cluster, *, now: Callable[[], float]) -> None:
        self._cluster = cluster
        self._failures: LeftOut[tuple[str, str]] = LeftOut(now)
        self._counted: dict[str, set[str]] = {}
        """UUIDs of the GPUs that have refused a claim, by its UID."""

    @property
    def due(self) -> float | None:
        """The monotonic time at which the next GPU is let in again, or its failure forgotten."""
        return self._failures.due

    def remembers(self, node: str) -> bool:
        """True if a slice could not be made on a node, and not long ago."""
        inventory = self._cluster.inventory(node)
        gpus = inventory.gpus if inventory is not None else ()
        return any(self._failures.remembers((node, gpu.name)) for gpu in gpus)

    def note(self, node: str) -> None:
        """Leave out the GPUs of Prepares that a node now says have failed there."""
        inventory = self._cluster.inventory(node)
        if inventory is None:
            return
        for failed in inventory.failed_claims:
            gpu = self._failed_gpu(failed, inventory)
            counted = self._counted.setdefault(failed.claim.uid, set()) if gpu else set()
            if gpu and failed.gpu not in counted:
                counted.add(failed.gpu)
                self.leave_out(node, gpu)

    def leave_out(self, node: str, gpu: str) -> None:
        """A slice could not be made on ``gpu-<minor>`` of a node."""
        self._failures.fail((node, gpu))
        self._cluster.fleet.leave_out(node, gpu, REASON)

    def expire(self) -> None:
        """Let in again what was out for long enough."""
        for node, gpu in self._failures.expire():
            self._cluster.fleet.leave_out(node, gpu, "")
            self._cluster.make_room(node)

    def forget_claim(self, claim_uid: str) -> None:
        """The claim is gone."""
        self._counted.pop(claim_uid, None)

    def _failed_gpu(self, failed: FailedClaim, inventory: Inventory) -> str:
        """The GPU of a claim that refused it, if nothing shows why; else empty."""
        ref = failed.claim
        known = self._cluster.claims.get((ref.namespace, ref.name))
        allocation = known.claim.allocation if known is not None else None
        if known is None or allocation is None or known.claim.ref.uid != ref.uid:
            return ""
        if not failed.gpu or allocation.node != inventory.node:
            return ""
        devices = [d.device for d in allocation.of_driver(self._cluster.driver)]
        if any(find_blocker(device, ref.uid, inventory) for device in devices):
            return ""
        gpus = {gpu.name for gpu in inventory.gpus if gpu.uuid == failed.gpu}
        return next((gpu for gpu in map(_gpu_of, devices) if gpu in gpus), "")


def _gpu_of(device: str) -> str:
    """The GPU of a slice; empty for anything else."""
    try:
        found = parse_device(device)
    except DeviceNameError:
        return ""
    return found.gpu if isinstance(found, MigDevice) else ""
