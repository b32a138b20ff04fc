"""The node's MigNode object: written when it differs from what is there, and only then.

It is looked at after changes on the hardware and changes of the object itself, so that a deleted or
edited MigNode comes back. What is there is known from the mirror and from the answers to the own
writes: while nobody else writes, a change costs one request.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from api.errors import InvalidObjectError
from dra.common.resources import MIG_NODES, NODES, Obj
from dra.gpu.inventory import Drain, Inventory, Reservation
from dra.gpu.mignode import drain_of, from_mignode, reservations_of, to_mignode
from dra.kube.client import KubeApi
from dra.kube.errors import AlreadyExistsError, ConflictError, KubeError, ObjectNotFoundError
from dra.kube.reflector import Change, Reflector
from dra.kube.timing import Clock, rfc3339
from kubeletplugin.publishing.republisher import Republisher

_log = logging.getLogger(__name__)
_VERSIONS_KEPT = 8
_OTHERS = frozenset({"drain", "reservations"})
"""Fields of ``spec`` that others write."""


class _StaleError(Exception):
    """The MigNode is not what it was thought to be."""


class MigNodePublisher(Republisher):
    """Keeps one MigNode true.

    ``on_reserved`` gets what is reserved after each change of the MigNode, in the watch's thread.

    ``inventory`` says what is true, or None while that is not known; it is asked from the own
    thread. What an administrator drains is left as it is, and is in :attr:`drain`; ``on_drain`` is
    called when it has changed.
    """

    def __init__(  # noqa: PLR0913 - what is true, and whom to tell
        self,
        api: KubeApi,
        node_name: str,
        *,
        field_manager: str,
        inventory: Callable[[], Inventory | None],
        on_drain: Callable[[], None] = lambda: None,
        on_reserved: Callable[[tuple[Reservation, ...]], None] = lambda _: None,
        clock: Clock | None = None,
    ) -> None:
        reflector = Reflector(
            api,
            MIG_NODES,
            field_selector=f"metadata.name={node_name}",
            on_event=self._changed,
        )
        super().__init__(f"MigNode {node_name}", reflector, clock=clock)
        self._api = api
        self._node_name = node_name
        self._manager = field_manager
        self._inventory = inventory
        self._on_drain = on_drain
        self._on_reserved = on_reserved
        self.drain: Drain | None = None
        self._mutex = threading.Lock()
        self._known: Obj | None = None
        self._asking = False
        self._heard: list[str] = []
        self._versions: deque[str] = deque(maxlen=_VERSIONS_KEPT)
        self._true: tuple[Inventory, str] | None = None
        self._owner: Obj | None = None

    def look(self) -> Inventory | None:
        """Read the MigNode, drains included; None if there is none, or no answer."""
        try:
            found = self._api.get(MIG_NODES, self._node_name)
            inventory = from_mignode(found)
        except (KubeError, InvalidObjectError, ValueError) as error:
            _log.info("MigNode %s: %s", self._node_name, error)
            return None
        self.drain = inventory.drain
        self._hear_of_reservations(found)
        return inventory

    def _changed(self, change: Change) -> None:
        drain = _readable_drain(change.new) if change.new is not None else None
        if drain != self.drain:
            self.drain = drain
            self._on_drain()
        self._hear_of_reservations(change.new or {})
        version = _version(change.new)
        with self._mutex:
            if change.new is None:
                self._owner = None  # it goes with a Node that is replaced
            if self._asking:
                # Most likely what is being written: the answer will say.
                self._heard.append(version)
                return
            is_own = version in list(self._versions)[:-1] and not change.rewound
            if version == _version(self._known) or is_own:
                return
            self._known = change.new
        if change.kind != "added":
            self.notify()

    def _hear_of_reservations(self, obj: Obj) -> None:
        try:
            self._on_reserved(reservations_of(obj))
        except InvalidObjectError as error:
            _log.warning("what is reserved cannot be told: %s", error)

    def _publish(self) -> float | None:
        inventory = self._inventory()
        if inventory is None:
            return None
        with self._mutex:
            found = self._known
        if found is not None and self._true == (inventory, _version(found)):
            return None
        wanted = to_mignode(inventory, transition_time=rfc3339(self._clock.now()))
        try:
            if found is None:
                found = self._read_or_create(wanted)
            if not found["metadata"].get("deletionTimestamp"):  # else it comes back when it is gone
                found = self._update_spec(found, wanted)
                found = self._update_status(found, wanted)
                self._true = (inventory, _version(found))
        except _StaleError:
            self._forget()
        except KubeError:
            self._forget()
            raise
        return None

    def _read_or_create(self, wanted: Obj) -> Obj:
        try:
            return self._ask(lambda: self._api.get(MIG_NODES, self._node_name))
        except ObjectNotFoundError:
            return self._ask(lambda: self._create(wanted))

    def _forget(self) -> None:
        with self._mutex:
            self._known = None
        self.notify()

    def _write(self, write: Callable[[], Obj]) -> Obj:
        """The MigNode after a write.

        Raises:
            _StaleError: somebody changed or deleted it meanwhile.
        """
        try:
            return self._ask(write)
        except (ConflictError, ObjectNotFoundError) as error:
            raise _StaleError from error

    def _ask(self, request: Callable[[], Obj]) -> Obj:
        """The answer to a request, known from now on unless the mirror tells of another."""
        with self._mutex:
            self._asking, self._heard = True, []
        try:
            answer = request()
            with self._mutex:
                self._known = answer
                self._versions.append(_version(answer))
                self._asking = False
                others = set(self._heard) - set(self._versions)
        finally:
            with self._mutex:
                self._asking = False
        if others:
            self._forget()
        return answer

    def _create(self, wanted: Obj) -> Obj:
        """Create it, owned by the Node, so that it goes with it.

        Raises:
            KubeError: also when the CRD is not installed, which is a 404 as well.
        """
        self._owner = node_owner(self._api, self._node_name)
        body = {
            **{k: v for k, v in wanted.items() if k != "status"},
            "metadata": {"name": self._node_name, "ownerReferences": [self._owner]},
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

    def _update_spec(self, found: Obj, wanted: Obj) -> Obj:
        if self._owner is None:
            self._owner = node_owner(self._api, self._node_name)
        metadata = found["metadata"]
        kept = {k: v for k, v in (found.get("spec") or {}).items() if k in _OTHERS}
        spec = {k: v for k, v in wanted["spec"].items() if k not in _OTHERS} | kept
        if found.get("spec") == spec and metadata.get("ownerReferences") == [self._owner]:
            return found
        body = {**found, "metadata": {**metadata, "ownerReferences": [self._owner]}, "spec": spec}
        return self._write(lambda: self._api.replace(MIG_NODES, body, field_manager=self._manager))

    def _update_status(self, found: Obj, wanted: Obj) -> Obj:
        status = _keep_known(wanted["status"], found.get("status") or {})
        if found.get("status") == status:
            return found
        body = {**found, "status": status}

        def write() -> Obj:
            metadata = self._api.replace_status(MIG_NODES, body, field_manager=self._manager)
            return {**body, "metadata": metadata}

        return self._write(write)


def _version(obj: Obj | None) -> str:
    return str(((obj or {}).get("metadata") or {}).get("resourceVersion", ""))


def _readable_drain(obj: Obj) -> Drain | None:
    try:
        return drain_of(obj)
    except InvalidObjectError as error:
        _log.warning("what is drained cannot be told: %s", error)
        return None


def node_owner(api: KubeApi, node_name: str) -> Obj:
    """The owner reference to a Node, whose objects go with it.

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
    """The new status: what is not known again yet stays, and times while values are the same."""
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
    kept = {"resumed": found["resumed"]} if found.get("resumed") else {}
    return {**kept, **status, "conditions": conditions}
