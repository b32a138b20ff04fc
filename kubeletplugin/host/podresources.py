"""Pods of this node with their devices, by kubelet's PodResources service."""

from __future__ import annotations

import itertools
import json
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from api.kubelet.podresources.v1 import api_pb2 as v1
from api.kubelet.podresources.v1 import api_pb2_grpc as v1_grpc
from kubeletplugin.errors import HostError
from kubeletplugin.host.processes import logged_pods, running_pods
from kubeletplugin.host.roots import Roots
from kubeletplugin.times import ASK_KUBELET_SECONDS

_MOST_BYTES = 4 << 20
"""Longest answer that is read; 110 pods with hundreds of devices each stay far below."""


_CHECKPOINT = "device-plugins/kubelet_internal_checkpoint"


@dataclass(frozen=True, slots=True)
class ClaimDevice:
    """A device of a prepared claim, which is in the pod's namespace."""

    claim: str
    driver: str
    pool: str
    device: str
    share_id: str
    cdi_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PodDevices:
    """A pod and what its containers hold; ``plugin_devices``: resource and id of each device."""

    namespace: str
    name: str
    plugin_devices: frozenset[tuple[str, str]]
    claim_devices: frozenset[ClaimDevice]


class PodResources:
    """The service on kubelet's ``socket``. Thread-safe.

    Kubelet answers 100 calls a second for all programs of the node together, so callers that come
    while a call is under way share the next one.
    """

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self._lock = threading.Lock()
        self._asked = self._answered = 0
        self._pods: tuple[PodDevices, ...] = ()

    def pods(self) -> tuple[PodDevices, ...]:
        """The pods of this node that have not ended, as kubelet knows them after this call began.

        A pod that was deleted by force is missing, although its containers may run on. So are, of
        a pod's devices, those of init containers and of claims that no container names.

        Raises:
            HostError: kubelet does not answer, or its answer is too long.
        """
        self._asked = number = self._asked + 1
        with self._lock:
            if self._answered < number:
                covered = self._asked
                self._pods = self._list()
                self._answered = covered
            return self._pods

    def offered(self) -> frozenset[tuple[str, str]]:
        """Resource and id of each healthy device that device plugins give out now, or have given.

        Raises:
            HostError: kubelet does not answer, or its answer is too long.
        """
        answer = self._ask("GetAllocatableResources", v1.AllocatableResourcesRequest())
        return frozenset((d.resource_name, each) for d in answer.devices for each in d.device_ids)

    def _list(self) -> tuple[PodDevices, ...]:
        answer = self._ask("List", v1.ListPodResourcesRequest())
        return tuple(_read(pod) for pod in answer.pod_resources)

    def _ask(self, method: str, request: Any) -> Any:
        limit = [("grpc.max_receive_message_length", _MOST_BYTES)]
        try:
            with grpc.insecure_channel(f"unix:{self.socket}", options=limit) as channel:
                call = getattr(v1_grpc.PodResourcesListerStub(channel), method)
                return call(request, timeout=ASK_KUBELET_SECONDS)
        except grpc.RpcError as error:
            raise HostError(
                f"kubelet cannot be asked on {self.socket}: {error.code().name}: {error.details()}"
            ) from error


def checkpointed_devices(roots: Roots) -> tuple[PodDevices, ...]:
    """Devices of device plugins that running pods have, as kubelet has recorded them.

    Those of init containers are among them (pkg/kubelet/cm/devicemanager/checkpoint). Empty where
    there is no such record.

    Raises:
        HostError: the record cannot be read.
    """
    path = roots.on_host(str(roots.kubelet / _CHECKPOINT))
    found: dict[str, list[tuple[str, str]]] = {}
    try:
        for entry in json.loads(path.read_bytes())["Data"]["PodDeviceEntries"] or ():
            ids = itertools.chain(*entry["DeviceIDs"].values())
            found.setdefault(entry["PodUID"], []).extend((entry["ResourceName"], i) for i in ids)
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise HostError(f"cannot read {path}, who has which device: {error!r}") from error
    names = logged_pods(roots)
    return tuple(
        PodDevices(*names.get(uid, ("pod of UID", uid)), frozenset(found[uid]), frozenset())
        for uid in running_pods(roots, found)
    )


def unlisted_pods(roots: Roots, pods: Iterable[PodDevices], namespace: str = "") -> list[str]:
    """Pods of which a process runs and that kubelet does not list, as those deleted by force.

    ``pods``: those that it lists. ``namespace``: of the pods; all without one.
    """
    found = logged_pods(roots).items()
    logged = {uid: each for uid, each in found if namespace in {"", each[0]}}
    listed = Counter((pod.namespace, pod.name) for pod in pods)
    missing = Counter(logged.values()) - listed
    running = running_pods(roots, [uid for uid, each in logged.items() if each in missing])
    return ["/".join(each) for each in sorted(Counter(logged[uid] for uid in running) - listed)]


def _read(pod: v1.PodResources) -> PodDevices:
    return PodDevices(
        pod.namespace,
        pod.name,
        frozenset(
            (devices.resource_name, each)
            for container in pod.containers
            for devices in container.devices
            for each in devices.device_ids
        ),
        frozenset(
            ClaimDevice(
                claim.claim_name,
                each.driver_name,
                each.pool_name,
                each.device_name,
                each.share_id,
                tuple(cdi.name for cdi in each.cdi_devices),
            )
            for container in pod.containers
            for claim in container.dynamic_resources
            for each in claim.claim_resources
        ),
    )
