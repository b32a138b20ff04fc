"""The node's ResourceSlices: with devices while kube-scheduler allocates, otherwise without.

Kubelet deletes them when it starts, and when this program was gone for 30 s; they are written
again. Their content changes with the hardware, not with pods.

While the controller allocates, one slice without devices names the pool. Without it cluster
autoscaler, which copies a node with its pods, fails in each of its loops for all node groups, as a
claim has a device of a pool that no slice of the node names (cluster-autoscaler 1.36,
simulator/dynamicresources/utils/sanitize.go).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from msgspec import Raw

from dra.claims.conditions import binding_fields
from dra.claims.reasons import NodeReason
from dra.common.resources import MIG_NODES, RESOURCE_SLICES, Obj
from dra.gpu.geometry import Occupant
from dra.gpu.inventory import AllocatorKind, Gpu, InstanceState, Inventory, Publication
from dra.kube.client import KubeApi
from dra.kube.errors import ForbiddenError, InvalidError, KubeError, ObjectNotFoundError
from dra.kube.http import whole
from dra.kube.timing import Backoff, Clock
from dra.resourceslices.partitions import Doubts, Offered, offered
from dra.resourceslices.resourceslices import (
    Features,
    SliceLayout,
    object_name,
    taint_key,
)
from kubeletplugin import times
from kubeletplugin.common import Common
from kubeletplugin.options import BindingConditions
from kubeletplugin.publishing.mignode import AllocatorMode, node_owner
from kubeletplugin.publishing.slicewriter import DroppedFieldsError, SliceWriter
from kubeletplugin.publishing.writer import Known, Writer

_log = logging.getLogger(__name__)
_INDEX = 9999
_COUNTERS = {"probe": {"value": "1"}}
_GOING = (InstanceState.RECLAIMING, InstanceState.ORPHAN)
_GATE_OFF = (
    "the API server drops the fields of partitionable devices (feature gate "
    "DRAPartitionableDevices); turn the gate on in API server and scheduler"
)


class SlicePublisher(Writer):
    """Writes the node's ResourceSlices when they differ from the inventory.

    ``inventory``: see MigNodePublisher. When the publisher is stopped the slices stay: kubelet
    keeps them for 30 s for the next run.
    """

    def __init__(
        self,
        common: Common,
        mode: AllocatorMode,
        *,
        inventory: Callable[[], Inventory | None],
        failed_gpus: FailedGpus,
    ) -> None:
        options = self._options = common.options
        self._known = Known(
            common.api,
            RESOURCE_SLICES,
            field_selector=f"spec.nodeName={options.node_name},spec.driver={options.driver_name}",
            on_change=lambda _, is_news: self.notify() if is_news else None,
            keep=self._kept,
        )
        what = f"ResourceSlices of {options.node_name}"
        super().__init__(what, reflector=self._known.reflector, clock=common.clock)
        self._api = common.api
        self._mode = mode
        self._inventory = inventory
        self._failed_gpus = failed_gpus
        self._reports = common.reports
        self._unaccounted = Unaccounted(self._clock)
        self._writer = SliceWriter(
            common,
            owner=lambda: {**node_owner(common.api, options.node_name), "controller": True},
            known=self._known,
        )
        own = Inventory(options.node_name, options.pool, options.driver_name)
        self._nothing = offered(own, {}, taints=False)
        self._features: Features | None = None
        self._announced = False
        self._was_controllers = False
        self._last: tuple[Offered, Mapping[str, str]] | None = None
        self._given_up: Publication | None = None

    def _kept(self, raw: Raw) -> Obj | None:
        metadata = whole(raw)["metadata"]
        return {"metadata": metadata} if self._writer.is_ours(metadata["name"]) else None

    def _write(self, _key: str) -> float | None:
        if self._mode.wanted is AllocatorKind.CONTROLLER or self._given_up is not None:
            if self._mode.allocator is not AllocatorKind.CONTROLLER:
                self._withdraw()
            self._name_pool()
            return None
        inventory = self._inventory()
        if inventory is None:
            return None
        if not self._announced and not self._announce():
            return times.ANNOUNCED_SECONDS
        try:
            self._sync(inventory)
        except KubeError as error:
            self._mode.report(Publication(done=False, reason="WriteFailed", message=str(error)))
            raise
        due = (self._unaccounted.due(), self._failed_gpus.due())
        return min((seconds for seconds in due if seconds is not None), default=None)

    def _announce(self) -> bool:
        """True if the MigNode says that kube-scheduler allocates; pauses first after a change."""
        try:
            found = self._api.get(MIG_NODES, self._options.node_name)
        except ObjectNotFoundError:
            found = {}
        if found and found["spec"]["allocator"] != AllocatorKind.SCHEDULER.value:
            self._was_controllers = True
            return False
        if self._was_controllers:
            self.thread.pause(times.HANDOVER_SECONDS)
        self._announced = True
        return True

    def _sync(self, inventory: Inventory) -> None:
        if self._last is not None and self._known.versions() != self._last[1]:
            self.thread.pause(times.QUIET_SLICES_SECONDS)
        features = self._features = self._features or self._probe(inventory)
        if features is None:
            self._give_up("GateOff", _GATE_OFF)
            return
        wanted = self._offered(inventory, features)
        if self._last == (wanted, self._known.versions()):
            return
        self._last = None
        try:
            versions = self._writer.write(SliceLayout(wanted, features))
        except DroppedFieldsError as error:
            if not error.taints:
                self._give_up("GateOff", f"{error}: {_GATE_OFF}")
                return
            _log.warning("%s; devices that cannot be used are left out instead", error)
            self._features = replace(features, taints=False)
            self.notify()
            return
        except InvalidError as error:
            self._give_up("LimitExceeded", str(error))
            return
        self._last = wanted, versions
        self._mode.report(Publication(done=True, reason="Published"))

    def _probe(self, inventory: Inventory) -> Features | None:
        return probe(self._api, inventory, field_manager=self._options.field_manager)

    def _offered(self, inventory: Inventory, features: Features) -> Offered:
        blocked = self._unaccounted.look(inventory.gpus)
        doubts = self._failed_gpus.doubts(inventory.gpus)
        return offered(
            inventory, blocked, taints=features.taints, shares=features.shares, doubts=doubts
        )

    def _give_up(self, reason: str, message: str) -> None:
        """Withdraw the slices and let the controller allocate until this program ends."""
        text = (
            f"{message}. The controller allocates this node's GPUs until this plugin is restarted"
        )
        _log.error("--allocator=scheduler is not possible: %s", text)
        self._reports.report_node(NodeReason.NO_SLICES, text, warning=True)
        self._given_up = Publication(done=False, reason=reason, message=text)
        self._mode.report(self._given_up)
        self._withdraw()

    def _withdraw(self) -> None:
        try:
            count = self._writer.withdraw()
        except ForbiddenError as error:
            # An old role without this permission: no earlier run can have published slices.
            _log.warning("ResourceSlices of an earlier run cannot be looked for: %s", error)
            count = 0
        if count:
            _log.info("%d ResourceSlices withdrawn: the controller allocates", count)
        self._mode.withdraw()

    def _name_pool(self) -> None:
        """Write one slice without devices, which names the pool."""
        if self._last != (self._nothing, self._known.versions()):
            self._last = self._nothing, self._writer.write(SliceLayout(self._nothing, Features()))


class FailedGpus:
    """GPUs on which a slice could not be made lately. Thread-safe.

    Slices of such a GPU are not to be allocated for a while, as kube-scheduler would pick the same
    device again. After that, while the failure is remembered, a pod is to be bound only once its
    slice is made; ``binding`` is the option that makes this hold always, or never. ``on_change``:
    called without a lock.
    """

    def __init__(
        self,
        binding: BindingConditions,
        *,
        on_change: Callable[[], None],
        clock: Clock,
    ) -> None:
        self._binding = binding
        self._on_change = on_change
        self._clock = clock
        self._lock = threading.Lock()
        self._pauses: dict[str, Backoff] = {}

    def failed(self, gpus: Iterable[str]) -> None:
        """Take note that a slice could not be made on these GPUs (UUIDs)."""
        with self._lock:
            now = self._clock.monotonic()
            for gpu in gpus:
                pause = self._pauses.setdefault(
                    gpu,
                    Backoff(
                        first=times.FAILED_FIRST_SECONDS,
                        limit=times.FAILED_LONGEST_SECONDS,
                        jitter=0.0,
                    ),
                )
                if pause.left(now):
                    pause.postpone(now)
                else:
                    pause.fail(now)
        self._on_change()

    def prove(self, gpus: Iterable[str]) -> None:
        """Take note that slices were made on these GPUs (UUIDs)."""
        now = self._clock.monotonic()
        with self._lock:
            proven = {g for g in gpus if g in self._pauses and not self._pauses[g].left(now)}
            self._pauses = {g: p for g, p in self._pauses.items() if g not in proven}
        if proven:
            self._on_change()

    def doubts(self, gpus: Iterable[Gpu]) -> Doubts:
        """GPUs whose slices are not to be allocated, or are to be made before a pod is bound."""
        with self._lock:
            now = self._clock.monotonic()
            self._pauses = {gpu: p for gpu, p in self._pauses.items() if _forgotten(p) > now}
            made_first = {
                BindingConditions.NEVER: frozenset[str](),
                BindingConditions.AFTER_FAILURE: frozenset(self._pauses),
                BindingConditions.ALWAYS: frozenset(gpu.uuid for gpu in gpus),
            }
            out = frozenset(gpu for gpu, pause in self._pauses.items() if pause.left(now))
            return Doubts(out, made_first[self._binding])

    def due(self) -> float | None:
        """Seconds until the doubts change by themselves; None if they will not."""
        now = self._clock.monotonic()
        with self._lock:
            due = (p.left(now) or _forgotten(p) - now for p in self._pauses.values())
            return min((max(0.0, seconds) for seconds in due), default=None)


def _forgotten(pause: Backoff) -> float:
    """The monotonic time at which a failure is forgotten, if there is no other."""
    return pause.until + times.FAILED_LONGEST_SECONDS


class Unaccounted:
    """Finder of instances that no allocation accounts for: their placements are not offered.

    These are foreign instances, and own ones whose removal takes ``GOING_SECONDS`` or longer. Not
    thread-safe.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: dict[tuple[str, Occupant], float] = {}

    def look(self, gpus: Sequence[Gpu]) -> dict[str, tuple[Occupant, ...]]:
        """Placements that are not to be offered now, by GPU UUID."""
        now = self._clock.monotonic()
        on = [(g.uuid, i.occupant, i.state) for g in gpus for i in g.instances]
        stays = {(uuid, occupant) for uuid, occupant, state in on if state not in _GOING}
        # A shared slice stays while one claim holds it, even if another's share is being removed.
        going = {(uuid, occupant) for uuid, occupant, _ in on} - stays
        self._since = {key: self._since.get(key, now) for key in going}
        blocked: dict[str, dict[Occupant, None]] = {}
        for uuid, occupant, state in on:
            since = self._since.get((uuid, occupant), now)
            if state is InstanceState.FOREIGN or now - since >= times.GOING_SECONDS:
                blocked.setdefault(uuid, {})[occupant] = None
        return {uuid: tuple(occupants) for uuid, occupants in blocked.items()}

    def due(self) -> float | None:
        """Seconds until the removal of an instance will have taken too long; None without one."""
        now = self._clock.monotonic()
        left = (since + times.GOING_SECONDS - now for since in self._since.values())
        return min((seconds for seconds in left if seconds > 0), default=None)


def probe(api: KubeApi, inventory: Inventory, *, field_manager: str) -> Features | None:
    """Features of ResourceSlices that the API server serves; None without partitionable devices.

    A dry run tests them, as the server's version does not tell: a feature gate may be on or off in
    any version, and managed clusters number their versions as they like. The server silently drops
    fields that it does not serve, so a slice is sent and the answer compared.

    Kubernetes 1.34 takes counter sets and devices in one slice; later versions refuse that.

    Raises:
        KubeError: the server refuses slices altogether, or does not answer.
    """
    device = {
        "name": "probe",
        "consumesCounters": [{"counterSet": "probe", "counters": _COUNTERS}],
        "taints": [{"key": taint_key(inventory.driver), "effect": "NoSchedule"}],
        **binding_fields(),
        "allowMultipleAllocations": True,
    }
    together = {"sharedCounters": [{"name": "probe", "counters": _COUNTERS}], "devices": [device]}
    try:
        kept, separate = _dry_run(api, inventory, together, field_manager), False
    except InvalidError:
        kept, separate = _dry_run(api, inventory, {"devices": [device]}, field_manager), True
    (found,) = kept["devices"]
    if not found.get("consumesCounters") or not (separate or kept.get("sharedCounters")):
        return None
    return Features(
        separate=separate,
        taints=bool(found.get("taints")),
        binding=bool(found.get("bindingConditions")),
        # Shares double the devices, which is too many for the single slice of 1.34.
        shares=separate and bool(found.get("allowMultipleAllocations")),
    )


def _dry_run(api: KubeApi, inventory: Inventory, content: dict[str, Any], manager: str) -> Obj:
    body = {
        "apiVersion": RESOURCE_SLICES.api_version,
        "kind": RESOURCE_SLICES.kind,
        "metadata": {"name": object_name(_INDEX, driver=inventory.driver, node=inventory.node)},
        "spec": {
            "driver": inventory.driver,
            "nodeName": inventory.node,
            "pool": {"name": inventory.pool, "generation": 0, "resourceSliceCount": 1},
            **content,
        },
    }
    made = api.create(RESOURCE_SLICES, body, field_manager=manager, dry_run=True)
    spec: Obj = made["spec"]
    return spec
