"""Kubelet's PodResources service: which pod holds which devices of prepared claims."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from api.kubelet.podresources.v1 import api_pb2 as v1
from api.kubelet.podresources.v1 import api_pb2_grpc as v1_grpc
from dra.common.resources import Obj
from sim.kubelet.claims import ClaimInfo

Claims = Callable[[Obj, Obj], Iterable[ClaimInfo]]
"""Function that returns the claims of one container of a pod."""

Devices = Callable[[str], Mapping[str, Sequence[str]]]
"""Function that returns ids of device plugins' devices by resource: those that the pod of this name
has, or those that are given out at all, for the empty name."""


class PodResourcesServer(v1_grpc.PodResourcesListerServicer):
    """The service on ``root/pod-resources/kubelet.sock`` (server_v1.go, GetDynamicResources).

    ``pods``: the pods that have not ended, and that the API server still has. Left out are, as in
    kubelet's answer, init containers that are not restarted, and claims that no container names.
    """

    def __init__(
        self,
        root: Path,
        pods: Callable[[], Iterable[Obj]],
        claims: Claims,
        *,
        devices: Devices = lambda _: {},
    ) -> None:
        self._pods = pods
        self._claims = claims
        self._devices = devices
        socket = root / "pod-resources" / "kubelet.sock"
        socket.parent.mkdir(parents=True, exist_ok=True)
        socket.unlink(missing_ok=True)
        self._server = grpc.server(ThreadPoolExecutor(2, thread_name_prefix="podresources"))
        v1_grpc.add_PodResourcesListerServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{socket}")

    def start(self) -> None:
        """Begins to serve."""
        self._server.start()

    def stop(self) -> None:
        """Ends at once; the socket goes."""
        self._server.stop(0).wait()

    def List(  # noqa: N802 - the protocol's name
        self,
        request: v1.ListPodResourcesRequest,  # noqa: ARG002 - the protocol's signature
        context: grpc.ServicerContext,  # noqa: ARG002 - the protocol's signature
    ) -> v1.ListPodResourcesResponse:
        """Every pod with the devices of its containers."""
        return v1.ListPodResourcesResponse(pod_resources=[self._pod(p) for p in self._pods()])

    def GetAllocatableResources(  # noqa: N802 - the protocol's name
        self,
        request: v1.AllocatableResourcesRequest,  # noqa: ARG002 - the protocol's signature
        context: grpc.ServicerContext,  # noqa: ARG002 - the protocol's signature
    ) -> v1.AllocatableResourcesResponse:
        """The devices that device plugins give out."""
        return v1.AllocatableResourcesResponse(devices=self._of_plugins(""))

    def _of_plugins(self, pod: str) -> list[v1.ContainerDevices]:
        return [
            v1.ContainerDevices(resource_name=resource, device_ids=ids)
            for resource, ids in self._devices(pod).items()
        ]

    def _pod(self, pod: Obj) -> v1.PodResources:
        spec = pod["spec"]
        sidecars = [c for c in spec.get("initContainers", ()) if c.get("restartPolicy") == "Always"]
        return v1.PodResources(
            name=pod["metadata"]["name"],
            namespace=pod["metadata"]["namespace"],
            containers=[
                v1.ContainerResources(
                    name=container["name"],
                    devices=self._of_plugins(pod["metadata"]["name"]),
                    dynamic_resources=[_claim(c) for c in self._claims(pod, container)],
                )
                for container in (*sidecars, *spec.get("containers", ()))
            ],
        )


def _claim(claim: ClaimInfo) -> v1.DynamicResource:
    resources = []
    for driver, devices in claim.devices.items():
        cdi: list[v1.CDIDevice] = []
        for device in devices:
            cdi += [v1.CDIDevice(name=name) for name in device.cdi_ids]  # grows, as kubelet's does
            resources.append(
                v1.ClaimResource(
                    cdi_devices=cdi,
                    driver_name=driver,
                    pool_name=device.pool,
                    device_name=device.device,
                )
            )
    return v1.DynamicResource(
        claim_name=claim.ref.name,
        claim_namespace=claim.ref.namespace,
        claim_resources=resources,
    )
