"""GPUs on which a slice could not be made for no reason that shows, left out for a while.

What shows, such as an instance in the way or a GPU that is lost, the fleet knows by itself. A GPU
that fails again once it was let in stays out for longer each time, from 20 seconds to 10 minutes;
without another failure for as long, it begins anew. A claim that is tried while the GPU is out has
it stay out from then on, for no longer than before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from controller.cluster.cluster import Cluster
from dra.gpu.holdings import find_blocker
from dra.gpu.inventory import FailedClaim, Inventory
from dra.gpu.names import DeviceNameError, MigDevice, parse_device
from dra.kube.timing import Backoff

FIRST_SECONDS = 20.0
LONGEST_SECONDS = 600.0

REASON = "a slice could not be made on it lately; it is tried again after a while"


@dataclass(slots=True)
class _Failure:
    until: float = 0.0
    pause: float = 0.0
    is_out: bool = False
    backoff: Backoff = field(
        default_factory=lambda: Backoff(first=FIRST_SECONDS, limit=LONGEST_SECONDS, jitter=0)
    )


class FailedGpus:
    """Failures by node and GPU. ``now`` gives monotonic seconds. Not thread-safe."""

    def __init__(self, cluster: Cluster, *, now: Callable[[], float]) -> None:
        self._cluster = cluster
        self._now = now
        self._failures: dict[tuple[str, str], _Failure] = {}
        self._counted: dict[str, str] = {}

    @property
    def due(self) -> float | None:
        """The monotonic time at which the next GPU is let in again, None if none is out."""
        return min((f.until for f in self._failures.values() if f.is_out), default=None)

    def remembers(self, node: str, gpu: str) -> bool:
        """True if a slice could not be made on ``gpu-<minor>`` of a node, and not long ago."""
        return (node, gpu) in self._failures

    def note(self, node: str) -> None:
        """A node says anew which Prepares failed there."""
        inventory = self._cluster.inventory(node)
        if inventory is None:
            return
        for failed in inventory.failed_claims:
            if self._counted.get(failed.claim.uid) != failed.time:
                self._counted[failed.claim.uid] = failed.time
                for gpu in self._failed_on(failed, inventory):
                    self._leave_out(node, gpu)

    def expire(self) -> None:
        """Let in again what was out for long enough."""
        now = self._now()
        for (node, gpu), failure in [*self._failures.items()]:
            if failure.is_out and failure.until <= now:
                failure.is_out = False
                self._cluster.fleet.leave_out(node, gpu, "")
                self._cluster.make_room(node)
            elif failure.until + LONGEST_SECONDS <= now:
                del self._failures[node, gpu]

    def forget_claim(self, claim_uid: str) -> None:
        """The claim is gone."""
        self._counted.pop(claim_uid, None)

    def _leave_out(self, node: str, gpu: str) -> None:
        failure = self._failures.setdefault((node, gpu), _Failure())
        if not failure.is_out:
            failure.pause = failure.backoff.next_delay()
        failure.until = self._now() + failure.pause
        failure.is_out = True
        self._cluster.fleet.leave_out(node, gpu, REASON)

    def _failed_on(self, failed: FailedClaim, inventory: Inventory) -> Iterator[str]:
        """The GPUs of a claim, if nothing shows why it failed on them."""
        ref = failed.claim
        known = self._cluster.claims.get((ref.namespace, ref.name))
        allocation = known.claim.allocation if known is not None else None
        if known is None or allocation is None or known.claim.ref.uid != ref.uid:
            return
        if allocation.node != inventory.node:
            return
        devices = [d.device for d in allocation.of_driver(self._cluster.driver)]
        if any(find_blocker(device, ref.uid, inventory) for device in devices):
            return
        for name in devices:
            try:
                device = parse_device(name)
            except DeviceNameError:
                continue
            if isinstance(device, MigDevice):
                yield device.gpu
