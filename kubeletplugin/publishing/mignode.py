"""The node's MigNode object: its allocator mode, its content, and its writer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from api.errors import InvalidObjectError
from dra.common.resources import MIG_NODES, NODES, Obj
from dra.gpu.inventory import (
    AllocatorKind,
    Drain,
    FailedClaim,
    Gpu,
    Inventory,
    NodeMode,
    Publication,
    Takeover,
    TakeoverProgress,
)
from dra.gpu.mignode import from_mignode, heartbeat_of, to_mignode, wishes_of
from dra.kube.client import KubeApi
from dra.kube.errors import AlreadyExistsError, ConflictError, KubeError, ObjectNotFoundError
from dra.kube.reflector import Change
from dra.kube.timing import rfc3339
from kubeletplugin import times
from kubeletplugin.common import Common
from kubeletplugin.gpus.hardware import Hardware
from kubeletplugin.gpus.monitor import HealthMonitor
from kubeletplugin.gpus.releasing import Releasing
from kubeletplugin.nvml.errors import at_hand
from kubeletplugin.publishing.writer import Known, Writer, version_of

_log = logging.getLogger(__name__)
_OTHERS = frozenset({"drain", "takeover"})
"""Fields of ``spec`` that others write."""


class AllocatorMode:
    """The node's allocator, and the state of its ResourceSlices. Thread-safe.

    Kubernetes does not prevent two allocators from allocating the same device, so the order of a
    change matters: the MigNode says ``scheduler`` before a ResourceSlice with devices is published,
    and ``controller`` only after the last one is deleted. ``wanted``: the configured allocator.
    """

    def __init__(self, wanted: AllocatorKind, *, on_change: Callable[[], None]) -> None:
        self.wanted = wanted
        self._on_change = on_change
        self._mutex = threading.Lock()
        self._withdrawn = False
        self._publication: Publication | None = None
        if wanted is AllocatorKind.SCHEDULER:
            self._publication = Publication(done=None, reason="Pending")

    @property
    def allocator(self) -> AllocatorKind | None:
        """Allocator for the MigNode; None while ResourceSlices of an earlier run may exist."""
        with self._mutex:
            if self._withdrawn:
                return AllocatorKind.CONTROLLER
            return AllocatorKind.SCHEDULER if self.wanted is AllocatorKind.SCHEDULER else None

    @property
    def publication(self) -> Publication | None:
        """State of the ResourceSlices for the MigNode; None if ``wanted`` is the controller."""
        with self._mutex:
            return self._publication

    def report(self, publication: Publication) -> None:
        """Record the state of the ResourceSlices; ``on_change`` is called if it changed."""
        with self._mutex:
            if publication == self._publication:
                return
            self._publication = publication
        self._on_change()

    def withdraw(self) -> None:
        """Change the allocator to the controller: no ResourceSlice has devices any more."""
        with self._mutex:
            self._withdrawn = True
        self._on_change()


class Wishes(NamedTuple):
    """Wishes of administrators in the MigNode, and the published progress of the takeover."""

    drain: Drain | None = None
    takeover: Takeover | None = None
    progress: TakeoverProgress | None = None


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Facts about claims and about needs of containers, for fields of the same name in Inventory.

    ``missing``: text on files that the node lacks for containers; it goes into the message.
    """

    failed_claims: tuple[FailedClaim, ...] = ()
    resumed: str = ""
    capabilities: tuple[str, ...] = ()
    mode: NodeMode | None = None
    progress: TakeoverProgress | None = None
    missing: str = ""
    cdi_hook: str = ""


class NodeInventory:
    """Builds the node's Inventory, from which MigNode and ResourceSlices are written. Thread-safe.

    ``wishes``: returns the drain and the takeover that an administrator has written. ``facts``:
    returns NodeFacts.
    """

    def __init__(  # noqa: PLR0913 - the sources of the inventory
        self,
        common: Common,
        mode: AllocatorMode,
        hardware: Hardware,
        *,
        monitor: HealthMonitor,
        releasing: Releasing,
        wishes: Callable[[], Wishes],
        facts: Callable[[], NodeFacts],
    ) -> None:
        self._options = common.options
        self._readiness = common.readiness
        self._journal = common.journal
        self._mode = mode
        self._hardware = hardware
        self._monitor = monitor
        self._releasing = releasing
        self._wishes = wishes
        self._facts = facts

    def of_mignode(self) -> Inventory | None:
        """Inventory for the MigNode; None if not :meth:`known`, or the allocator is not decided."""
        return None if self._mode.allocator is None else self.known()

    def known(self) -> Inventory | None:
        """The present inventory; None until the first look at the GPUs has succeeded or failed."""
        hardware, ready, reason = self._hardware, self._readiness.is_ready, self._readiness.reason
        if not ready and not reason:
            return None
        gpus = tuple(map(self._named, self._monitor.gpus() or self._gpus_before()))
        facts, wishes = self._facts(), self._wishes()
        missing, failure = facts.missing, self._journal.failure
        message = reason or failure or missing or "; ".join(hardware.problems)
        if not message and not gpus:
            message = "no NVIDIA GPU was found on this node"
        return Inventory(
            node=self._options.node_name,
            pool=self._options.pool,
            driver=self._options.driver_name,
            gpus=gpus,
            allocator=self._mode.allocator or self._options.allocator,
            driver_version=hardware.driver_version,
            cuda_driver_version=hardware.cuda_version,
            cdi_hook=facts.cdi_hook,
            ready=ready and bool(gpus) and not failure and not missing,
            message=message,
            publication=self._mode.publication,
            drain=wishes.drain,
            takeover=wishes.takeover,
            progress=facts.progress,
            resumed=facts.resumed,
            failed_claims=facts.failed_claims,
            capabilities=facts.capabilities,
            mode=facts.mode,
        )

    def _named(self, gpu: Gpu) -> Gpu:
        """The GPU, with its name put into the commands of its message."""
        text = at_hand(gpu.unavailable, gpu=gpu.name)
        return gpu if text == gpu.unavailable else replace(gpu, unavailable=text)

    def _gpus_before(self) -> tuple[Gpu, ...]:
        """GPUs as the last run published them, if this run cannot look at them; else none."""
        reason, before = self._releasing.unseen(), self._releasing.before
        if not reason or before is None:
            return ()
        why = self._readiness.reason
        return tuple(replace(g, reason=reason, unavailable=why) for g in before.gpus)


class MigNodePublisher(Writer):
    """Writes the node's MigNode when it differs from the inventory, and as a heartbeat.

    It compares after changes of the inventory and of the object, so that a deleted or edited
    MigNode is restored. While no other program writes, a change costs one request.

    ``inventory``: returns the inventory, or None while it is not known; called in this writer's
    thread. ``responds``: True if the plugin works; asked before a heartbeat, for which a write is
    made only where no other was made for a minute. :attr:`wishes`: what administrators have
    written.
    """

    def __init__(
        self,
        common: Common,
        *,
        inventory: Callable[[], Inventory | None],
        responds: Callable[[], bool],
    ) -> None:
        node_name = common.options.node_name
        self._known = Known(
            common.api,
            MIG_NODES,
            field_selector=f"metadata.name={node_name}",
            on_change=self._changed,
        )
        reflector = self._known.reflector
        super().__init__(f"MigNode {node_name}", reflector=reflector, clock=common.clock)
        self._api = common.api
        self._node_name = node_name
        self._manager = common.options.field_manager
        self._inventory = inventory
        self._responds = responds
        self._heartbeat, self._heartbeat_at = "", float("-inf")
        self._on_wish = common.changed
        self.wishes = Wishes()
        self._true: tuple[Inventory, str] | None = None
        self._owner: Obj | None = None

    def look(self) -> Inventory | None:
        """Read the MigNode and its wishes; None if there is none, or no answer."""
        try:
            found = self._api.get(MIG_NODES, self._node_name)
            inventory = from_mignode(found)
        except (KubeError, InvalidObjectError, ValueError) as error:
            _log.info("MigNode %s: %s", self._node_name, error)
            return None
        self.wishes = Wishes(inventory.drain, inventory.takeover, inventory.progress)
        return inventory

    def _changed(self, change: Change, is_news: bool) -> None:  # noqa: FBT001
        wishes = _readable_wishes(change.new) if change.new is not None else Wishes()
        if wishes != self.wishes:
            self.wishes = wishes
            self._on_wish()
        if change.new is None:
            self._owner = None  # it may be gone because the Node was replaced
        if is_news:
            self.notify()

    def _write(self, _key: str) -> float | None:
        inventory = self._inventory()
        if inventory is None:
            return None
        found = self._known.objects().get(self._node_name)
        again = self._renew(found) if found is not None else None
        if found is not None and self._true == (inventory, version_of(found)):
            return again
        wanted = to_mignode(inventory, transition_time=rfc3339(self._clock.now()))
        owner = self._owner = self._owner or node_owner(self._api, self._node_name)
        try:
            if found is None:
                found = self._read_or_create(wanted, owner)
                again = self._renew(found)
            if not found["metadata"].get("deletionTimestamp"):  # else made anew once it is gone
                found = self._update_spec(found, wanted, owner)
                found = self._update_status(found, wanted)
                self._true = (inventory, version_of(found))
        except (ConflictError, ObjectNotFoundError):
            # Somebody changed or deleted it meanwhile.
            self._read_or_create(wanted, owner)
            return 0.0
        return again

    def _renew(self, found: Obj) -> float:
        """Renew the heartbeat if it is due; one from before a restart counts."""
        if not self._heartbeat and (last := heartbeat_of(found)) is not None:
            age = (self._clock.now() - last).total_seconds()
            if 0.0 <= age < times.HEARTBEAT_SECONDS:
                self._heartbeat = rfc3339(last)
                self._heartbeat_at = self._clock.monotonic() - age
        return self._beat(times.HEARTBEAT_SECONDS)

    def _beat(self, after: float) -> float:
        """Renew the heartbeat, if it is ``after`` seconds old; returns seconds until the next."""
        now = self._clock.monotonic()
        if now - self._heartbeat_at >= after:
            if not self._responds():
                return times.HEARTBEAT_CHECK_SECONDS
            self._heartbeat, self._heartbeat_at = rfc3339(self._clock.now()), now
            self._true = None
        return self._heartbeat_at + times.HEARTBEAT_SECONDS - now

    def _read_or_create(self, wanted: Obj, owner: Obj) -> Obj:
        try:
            return self._known.take(self._api.get(MIG_NODES, self._node_name))
        except ObjectNotFoundError:
            return self._known.take(self._create(wanted, owner))

    def _create(self, wanted: Obj, owner: Obj) -> Obj:
        """Create the MigNode, owned by the Node, so that it is deleted with the Node.

        Raises:
            KubeError: the write failed; the message says so if the CRD may not be installed.
        """
        body = {
            **{k: v for k, v in wanted.items() if k != "status"},
            "metadata": {"name": self._node_name, "ownerReferences": [owner]},
        }
        try:
            created = self._api.create(MIG_NODES, body, field_manager=self._manager)
        except ObjectNotFoundError as error:
            raise KubeError(
                f"{error}; is the CustomResourceDefinition {MIG_NODES} installed?"
            ) from error
        except AlreadyExistsError:
            return self._api.get(MIG_NODES, self._node_name)
        _log.info("MigNode %s created", self._node_name)
        return created

    def _update_spec(self, found: Obj, wanted: Obj, owner: Obj) -> Obj:
        metadata = found["metadata"]
        kept = {k: v for k, v in (found.get("spec") or {}).items() if k in _OTHERS}
        spec = {k: v for k, v in wanted["spec"].items() if k not in _OTHERS} | kept
        if found.get("spec") == spec and metadata.get("ownerReferences") == [owner]:
            return found
        body = {**found, "metadata": {**metadata, "ownerReferences": [owner]}, "spec": spec}
        return self._known.take(self._api.replace(MIG_NODES, body, field_manager=self._manager))

    def _update_status(self, found: Obj, wanted: Obj) -> Obj:
        status = _keep_known(wanted["status"], found.get("status") or {})
        if found.get("status") == self._with_heartbeat(status):
            return found
        self._beat(times.HEARTBEAT_SECONDS / 2)  # it need not be written by itself soon
        status = self._with_heartbeat(status)
        body = {**found, "status": status}
        metadata = self._api.replace_status(MIG_NODES, body, field_manager=self._manager)
        return self._known.take({**body, "metadata": metadata})

    def _with_heartbeat(self, status: Obj) -> Obj:
        return {**status, "lastHeartbeatTime": self._heartbeat} if self._heartbeat else status


def _readable_wishes(obj: Obj) -> Wishes:
    try:
        node = wishes_of(obj)
    except InvalidObjectError as error:
        _log.warning("what administrators ask for cannot be told: %s", error)
        return Wishes()
    return Wishes(node.spec.drain, node.spec.takeover, node.status.takeover)


def node_owner(api: KubeApi, node_name: str) -> Obj:
    """Owner reference to a Node; an object with it is deleted with the Node.

    Raises:
        KubeError: there is no such Node, or no answer.
    """
    node = api.get(NODES, node_name)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "name": node_name,
        "uid": node["metadata"]["uid"],
    }


def _keep_known(status: Any, found: Obj) -> Any:
    """The new status, with conditions of ``found`` in place of new ones that are Unknown.

    A condition with the same value as in ``found`` keeps its time of transition.
    """
    old = {c.get("type"): c for c in found.get("conditions", ())}
    conditions = []
    for condition in status["conditions"]:
        before = old.get(condition["type"], {})
        if condition["status"] == "Unknown" and before:
            conditions.append(before)
        elif condition["status"] == before.get("status") and before.get("lastTransitionTime"):
            time = before["lastTransitionTime"]
            conditions.append({**condition, "lastTransitionTime": time})
        else:
            conditions.append(condition)
    names = ("resumed", "lastHeartbeatTime", "takeover")
    kept = {name: found[name] for name in names if found.get(name)}
    return {**kept, **status, "conditions": conditions}
