"""An API server for one Lease, in memory: optimistic locking, and faults on demand."""

import copy
import threading
from collections.abc import Callable
from typing import Literal

from dra.common.resources import LEASES, Obj, Resource
from dra.kube.client import KubeApi
from dra.kube.errors import AlreadyExistsError, ConflictError, ObjectNotFoundError, UnavailableError
from dra.kube.lease import LeaseLock, LeaseTimes
from tests.dra.kube.clocks import FakeClock

Fault = Literal["", "lost request", "lost answer"]
TIMES = LeaseTimes(lease_duration=15, renew_deadline=10, retry_period=2)


class LeaseServer(KubeApi):
    def __init__(self) -> None:
        self.lease: Obj | None = None
        self.writes = 0
        self.fault: Fault = ""
        self.on_request: Callable[[], None] = lambda: None  # called before the server acts
        self.on_answer: Callable[[], None] = lambda: None  # called after it acted
        self._lock = threading.RLock()

    def get(self, resource: Resource, name: str, *, namespace: str = "") -> Obj:
        assert (resource, namespace, name) == (LEASES, "ns", "controller")
        return self._exchange(self._read)

    def create(
        self,
        resource: Resource,
        body: Obj,
        *,
        subresource: str = "",
        field_manager: str = "",
        dry_run: bool = False,
    ) -> Obj:
        def create() -> Obj:
            if self.stored() is not None:
                raise AlreadyExistsError("taken", status=409, reason="AlreadyExists")
            return self.store(body)

        return self._exchange(create)

    def replace(
        self, resource: Resource, body: Obj, *, subresource: str = "", field_manager: str = ""
    ) -> Obj:
        def replace() -> Obj:
            current = self._read()
            sent = body["metadata"]["resourceVersion"]
            if sent != current["metadata"]["resourceVersion"]:
                raise ConflictError("changed", status=409, reason="Conflict")
            return self.store(body)

        return self._exchange(replace)

    def stored(self) -> Obj | None:
        return self.lease

    def touch(self) -> None:
        """Somebody annotates the Lease."""
        assert self.lease is not None
        self.store(self.lease)

    @property
    def spec(self) -> Obj:
        assert self.lease is not None
        spec: Obj = self.lease["spec"]
        return spec

    def _exchange(self, act: Callable[[], Obj]) -> Obj:
        fault = self.fault
        self.on_request()
        with self._lock:
            if fault == "lost request":
                raise UnavailableError("no answer")
            result = act()
        self.on_answer()
        if fault == "lost answer":
            raise UnavailableError("no answer")
        return result

    def _read(self) -> Obj:
        lease = self.stored()
        if lease is None:
            raise ObjectNotFoundError("no lease", status=404)
        return copy.deepcopy(lease)

    def store(self, body: Obj) -> Obj:
        self.writes += 1
        self.lease = copy.deepcopy(body)
        self.lease["metadata"] |= {"resourceVersion": str(self.writes), "uid": "u"}
        return copy.deepcopy(self.lease)


class Link(LeaseServer):
    """One candidate's way to a server that it shares, with faults and delays of its own."""

    def __init__(self, shared: LeaseServer) -> None:
        super().__init__()
        self._shared = shared

    def stored(self) -> Obj | None:
        return self._shared.lease

    def store(self, body: Obj) -> Obj:
        return self._shared.store(body)


def candidate(server: LeaseServer, clock: FakeClock, identity: str) -> LeaseLock:
    return LeaseLock(
        server, namespace="ns", name="controller", identity=identity, times=TIMES, clock=clock
    )
