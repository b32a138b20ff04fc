"""The node's MigNode object: written when it differs from what is there, and only then.

One thread. It is woken by changes on the hardware and by changes of the object itself, so that a
deleted or edited MigNode comes back; many wishes while it works are one wish.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from typing import Any

from dra.inventory import Inventory
from dra.kube.errors import AlreadyExistsError, ConflictError, KubeError, NotFoundError
from dra.kube.reflector import Change, Reflector
from dra.kube.resources import MIG_NODES, NODES, Obj
from dra.kube.timing import Backoff, Clock, SystemClock, rfc3339
from dra.kube.transport import KubeApi
from dra.mignode import READY, to_mignode

_log = logging.getLogger(__name__)


class MigNodePublisher:
    """Keeps one MigNode true.

    ``inventory`` says what is true, or None while that is not known; it is asked from the own
    thread.
    """

    def __init__(
        self,
        api: KubeApi,
        node_name: str,
        *,
        field_manager: str,
        inventory: Callable[[], Inventory | None],
        clock: Clock | None = None,
    ) -> None:
        self._api = api
        self._node_name = node_name
        self._manager = field_manager
        self._inventory = inventory
        self._clock = clock or SystemClock()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._backoff = Backoff(first=0.2, rng=random.Random())  # noqa: S311 - jitter
        self._thread = threading.Thread(target=self._run, name="MigNode", daemon=True)
        self._reflector = Reflector(
            api,
            MIG_NODES,
            field_selector=f"metadata.name={node_name}",
            on_event=self._changed,
        )

    def start(self) -> None:
        """Publish, and go on publishing."""
        self._wake.set()
        self._reflector.start()
        self._thread.start()

    def stop(self) -> None:
        """Stop publishing; the object stays as it is."""
        self._stopping.set()
        self._wake.set()
        self._reflector.stop()
        if self._thread.is_alive():
            self._thread.join(timeout=5.0)

    def notify(self) -> None:
        """What is true may have changed."""
        self._wake.set()

    def _changed(self, change: Change) -> None:
        if change.kind != "added":
            self._wake.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait()
            self._wake.clear()
            if self._stopping.is_set():
                return
            try:
                self._publish()
                self._backoff.reset()
            except KubeError as error:
                self._retry(error)
            except Exception as error:  # noqa: BLE001 - a publisher that dies silently is worse
                _log.exception("MigNode %s", self._node_name)
                self._retry(error)

    def _retry(self, error: Exception) -> None:
        after = error.retry_after if isinstance(error, KubeError) else None
        delay = self._backoff.next_delay(at_least=after)
        _log.warning("MigNode %s: %s; again in %.1f s", self._node_name, error, delay)
        self._wake.set()
        self._clock.wait(self._stopping, delay)

    def _publish(self) -> None:
        inventory = self._inventory()
        if inventory is None:
            return
        wanted = to_mignode(inventory, transition_time=rfc3339(self._clock.now()))
        try:
            found = self._api.get(MIG_NODES, self._node_name)
        except NotFoundError:
            found = self._create(wanted)
        if found["metadata"].get("deletionTimestamp"):
            return  # it comes back when it is gone
        found = self._update_spec(found, wanted)
        self._update_status(found, wanted)

    def _create(self, wanted: Obj) -> Obj:
        """Create it, owned by the Node, so that it goes with it.

        Raises:
            KubeError: also when the CRD is not installed, which is a 404 as well.
        """
        body = {
            **{k: v for k, v in wanted.items() if k != "status"},
            "metadata": {"name": self._node_name, "ownerReferences": [self._owner()]},
        }
        try:
            created = self._api.create(MIG_NODES, body, field_manager=self._manager)
        except NotFoundError as error:
            raise KubeError(
                f"{error}; is the CustomResourceDefinition {MIG_NODES} installed?"
            ) from error
        except AlreadyExistsError:
            return self._api.get(MIG_NODES, self._node_name)
        _log.info("MigNode %s created", self._node_name)
        return created

    def _update_spec(self, found: Obj, wanted: Obj) -> Obj:
        owner = self._owner()
        metadata = found["metadata"]
        if found.get("spec") == wanted["spec"] and metadata.get("ownerReferences") == [owner]:
            return found
        body = {
            **found,
            "metadata": {**metadata, "ownerReferences": [owner]},
            "spec": wanted["spec"],
        }
        return self._api.replace(MIG_NODES, body, field_manager=self._manager)

    def _update_status(self, found: Obj, wanted: Obj) -> None:
        status = _keep_transition(wanted["status"], found.get("status") or {})
        if found.get("status") == status:
            return
        body = {**found, "status": status}
        try:
            self._api.replace(MIG_NODES, body, subresource="status", field_manager=self._manager)
        except (ConflictError, NotFoundError):
            self._wake.set()  # somebody changed or deleted it meanwhile: look again

    def _owner(self) -> Obj:
        node = self._api.get(NODES, self._node_name)
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "name": self._node_name,
            "uid": node["metadata"]["uid"],
        }


def _keep_transition(status: Any, found: Obj) -> Any:
    """The new status, whose Ready condition keeps its time while its value is the same."""
    old = next((c for c in found.get("conditions", ()) if c.get("type") == READY), None)
    conditions = [
        {**c, "lastTransitionTime": old["lastTransitionTime"]}
        if old is not None
        and c["type"] == READY
        and c["status"] == old.get("status")
        and old.get("lastTransitionTime")
        else c
        for c in status["conditions"]
    ]
    return {**status, "conditions": conditions}
