"""The node's ResourceSlices: full while kube-scheduler allocates, and empty before others do.

Kubelet deletes them when it starts, and when this program was gone for 30 s; they come back. What
is to be published changes with the hardware, not with pods: at rest nothing is written.

Where the controller allocates, a slice without devices remains, which names the pool. Without it
cluster autoscaler, which copies a node with its pods, ends each of its loops for all groups, as a
claim has a device of a pool that no slice of the node has (cluster-autoscaler 1.36,
simulator/dynamicresources/utils/sanitize.go).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from dra.claims.reasons import NodeReason
from dra.common.resources import MIG_NODES, RESOURCE_SLICES
from dra.gpu.inventory import AllocatorKind, Inventory, Publication
from dra.kube.client import KubeApi
from dra.kube.errors import ForbiddenError, KubeError, ObjectNotFoundError
from dra.kube.reflector import Change, Reflector
from dra.kube.timing import Clock, RetrySchedule
from dra.resourceslices.partitions import Offered, offered
from dra.resourceslices.resourceslices import Features, LayoutError, SliceLayout
from kubeletplugin.options import Options
from kubeletplugin.publishing.allocatormode import AllocatorMode
from kubeletplugin.publishing.mignode_publisher import node_owner
from kubeletplugin.publishing.republisher import Republisher
from kubeletplugin.publishing.slices.failed_gpus import FailedGpus
from kubeletplugin.publishing.slices.sliceprobe import probe
from kubeletplugin.publishing.slices.slicewriter import DroppedFieldsError, SliceWriter
from kubeletplugin.publishing.unaccounted import Unaccounted
from kubeletplugin.telemetry.reports import Reports

_log = logging.getLogger(__name__)

QUIET_SECONDS = 1.0
"""Kubelet deletes slices one after another: they are written again once it is through."""

GATE_SECONDS = 600.0
"""First pause after which a feature gate is asked for again: it changes with a restart of the API
server, seldom and not urgently."""

_LONGEST_GATE_SECONDS = 4 * 3600.0

HANDOVER_SECONDS = 2.0
"""Time for the controller to hear that it does not allocate here any more."""

_ANNOUNCE_SECONDS = 0.2
_GATE_OFF = (
    "the API server drops the fields of partitionable devices (feature gate "
    "DRAPartitionableDevices); turn the gate on in API server and scheduler: the plugin looks "
    "again every now and then, and at once when it is restarted"
)
_NO_OVERHEAD = (
    "the API server drops nodeAllocatableResources of devices, which need Kubernetes 1.37 with the "
    "feature gate DRANodeAllocatableResources in API server, scheduler and kubelet; restart the "
    "plugin once it is on"
)


class SlicePublisher(Republisher):
    """Keeps the slices true, or without devices. ``inventory`` is as in MigNodePublisher.

    When it is stopped the slices stay, for a plugin that is back within 30 s.
    """

    def __init__(  # noqa: PLR0913 - what it needs of the program
        self,
        api: KubeApi,
        options: Options,
        mode: AllocatorMode,
        *,
        inventory: Callable[[], Inventory | None],
        failed_gpus: FailedGpus,
        reports: Reports,
        clock: Clock | None = None,
    ) -> None:
        reflector = Reflector(
            api,
            RESOURCE_SLICES,
            field_selector=f"spec.nodeName={options.node_name},spec.driver={options.driver_name}",
            on_event=self._changed,
            keep=lambda obj: {"metadata": obj["metadata"]},
        )
        super().__init__(f"ResourceSlices of {options.node_name}", reflector, clock=clock)
        self._api = api
        self._options = options
        self._mode = mode
        self._inventory = inventory
        self._failed_gpus = failed_gpus
        self._reports = reports
        self._unaccounted = Unaccounted(self._clock)
        self._writer = SliceWriter(
            api,
            driver=options.driver_name,
            node=options.node_name,
            field_manager=options.field_manager,
            owner=partial(node_owner, api, options.node_name),
        )
        own = Inventory(options.node_name, options.pool, options.driver_name)
        self._nothing = offered(own, {}, taints=False)
        self._features: Features | None = None
        self._announced = False
        self._was_controllers = False
        self._last: Offered | None = None
        self._disturbances = self._repaired = 0  # by others: told by the watch, and written over
        self._given_up: Publication | None = None
        self._retry_schedule = RetrySchedule(
            self._clock, first=GATE_SECONDS, longest=_LONGEST_GATE_SECONDS
        )

    @property
    def disturbed(self) -> bool:
        """True if others did something to the slices that is not put right yet."""
        return self._disturbances != self._repaired

    def _changed(self, change: Change) -> None:
        if change.new is None or not self._writer.is_own(change.new):
            self._disturbances += 1
            self.notify()

    def _publish(self) -> float | None:
        if self._mode.wanted is AllocatorKind.CONTROLLER or self._given_up is not None:
            if self._mode.allocator is not AllocatorKind.CONTROLLER:
                self._withdraw()
            if self._given_up is None or self._retry_schedule.due() or not self._resume():
                self._name_pool()
                return None if self._given_up is None else self._retry_schedule.due()
        inventory = self._inventory()
        if inventory is None:
            return None
        if not self._announced and not self._announce():
            return _ANNOUNCE_SECONDS
        try:
            self._sync(inventory)
        except KubeError as error:
            self._mode.report(Publication(done=False, reason="WriteFailed", message=str(error)))
            raise
        due = (self._unaccounted.due(), self._failed_gpus.due())
        return min((seconds for seconds in due if seconds is not None), default=None)

    def _resume(self) -> bool:
        """True if what was given up is possible after all; then the controller is told.

        It is handed over as by a plugin that is restarted with another mode: what the controller
        allocated is among the devices that are published, and counts.
        """
        self._retry_schedule.postpone()
        inventory = self._inventory()
        if inventory is None:
            return False
        try:
            features = self._probe(inventory)
            if features is None:
                return False
            SliceLayout(self._offered(inventory, features), features).check()
        except (KubeError, LayoutError) as error:
            _log.info("--allocator=scheduler is not possible yet: %s", error)
            return False
        _log.info("--allocator=scheduler has become possible: kube-scheduler is to allocate")
        self._features = features
        self._given_up = self._last = None
        self._announced, self._was_controllers = False, True
        self._mode.resume()
        return True

    def _announce(self) -> bool:
        """True if the controller knows that it does not allocate here."""
        try:
            found = self._api.get(MIG_NODES, self._options.node_name)
        except ObjectNotFoundError:
            found = {}
        if found and found["spec"]["allocator"] != AllocatorKind.SCHEDULER.value:
            self._was_controllers = True
            return False
        if self._was_controllers:
            self.thread.pause(HANDOVER_SECONDS)
        self._announced = True
        return True

    def _sync(self, inventory: Inventory) -> None:
        if self.disturbed and self._last is not None:
            self.thread.pause(QUIET_SECONDS)
        disturbances = self._disturbances
        features = self._features = self._features or self._probe(inventory)
        if features is None:
            self._give_up("GateOff", _GATE_OFF)
            return
        wanted = self._offered(inventory, features)
        if wanted == self._last and disturbances == self._repaired:
            return
        self._last = None
        try:
            self._writer.write(SliceLayout(wanted, features))
        except DroppedFieldsError as error:
            if not error.taints:
                self._give_up("GateOff", f"{error}: {_GATE_OFF}")
                return
            _log.warning("%s; devices that cannot be used are left out instead", error)
            self._features = replace(features, taints=False)
            self.notify()
            return
        except LayoutError as error:
            self._give_up("LimitExceeded", str(error))
            return
        self._last, self._repaired = wanted, disturbances
        self._mode.report(Publication(done=True, reason="Published"))

    def _probe(self, inventory: Inventory) -> Features | None:
        overhead = self._options.device_overhead
        manager = self._options.field_manager
        features = probe(self._api, inventory, field_manager=manager, overhead=overhead)
        if overhead and features is not None and not features.overhead:
            _log.warning("--device-overhead has no effect: %s", _NO_OVERHEAD)
        return features

    def _offered(self, inventory: Inventory, features: Features) -> Offered:
        blocked = self._unaccounted.look(inventory.gpus)
        doubts = self._failed_gpus.doubts(inventory.gpus)
        return offered(
            inventory, blocked, taints=features.taints, shares=features.shares, doubts=doubts
        )

    def _give_up(self, reason: str, message: str) -> None:
        """Publish nothing until further notice; the controller is to allocate."""
        text = f"{message}. Until then the controller allocates this node's GPUs"
        _log.error("--allocator=scheduler is not possible: %s", text)
        self._reports.report_node(NodeReason.NO_SLICES, text, warning=True)
        self._retry_schedule.give_up()
        self._given_up = Publication(done=False, reason=reason, message=text)
        self._mode.report(self._given_up)
        self._withdraw()

    def _withdraw(self) -> None:
        try:
            count = self._writer.withdraw()
        except ForbiddenError as error:
            # A role from before this could be asked for: then nothing can have been published.
            _log.warning("ResourceSlices of an earlier run cannot be looked for: %s", error)
            count = 0
        if count:
            _log.info("%d ResourceSlices withdrawn: the controller allocates", count)
        self._mode.withdraw()

    def _name_pool(self) -> None:
        """Have one slice without devices."""
        disturbances = self._disturbances
        if self._last is self._nothing and disturbances == self._repaired:
            return
        self._writer.write(SliceLayout(self._nothing, Features()))
        self._last, self._repaired = self._nothing, disturbances
