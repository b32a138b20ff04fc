"""Registration with kubelet: the Registration service on a socket in plugins_registry."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import grpc

from api.kubelet.pluginregistration.v1 import api_pb2 as pb
from api.kubelet.pluginregistration.v1 import api_pb2_grpc

_log = logging.getLogger(__name__)

SERVICES = (
    "v1.DRAPlugin",
    "v1beta1.DRAPlugin",
    "v1.DRAResourceHealth",
    "v1alpha1.DRAResourceHealth",
)
"""Services on the service socket; kubelet takes the first that it knows."""


class Registration(api_pb2_grpc.RegistrationServicer):
    """Answers from memory: kubelet waits one second.

    ``on_registered`` is called, in a thread of the server, whenever kubelet took up the plugin.
    """

    def __init__(self, driver: str, endpoint: Path, on_registered: Callable[[], None]) -> None:
        self._driver = driver
        self._endpoint = endpoint
        self._on_registered = on_registered

    def GetInfo(  # noqa: N802 - the protocol's name
        self,
        request: pb.InfoRequest,  # noqa: ARG002 - the protocol's signature
        context: grpc.ServicerContext,  # noqa: ARG002 - the protocol's signature
    ) -> pb.PluginInfo:
        """Name of this driver, and the address of its services."""
        return pb.PluginInfo(
            type="DRAPlugin",
            name=self._driver,
            endpoint=str(self._endpoint),
            supported_versions=SERVICES,
        )

    def NotifyRegistrationStatus(  # noqa: N802 - the protocol's name
        self,
        request: pb.RegistrationStatus,
        context: grpc.ServicerContext,  # noqa: ARG002 - the protocol's signature
    ) -> pb.RegistrationStatusResponse:
        """Kubelet's verdict; it tries again by itself."""
        if request.plugin_registered:
            _log.info("registered with kubelet as %s", self._driver)
            self._on_registered()
        else:
            _log.error("kubelet did not register %s: %s", self._driver, request.error)
        return pb.RegistrationStatusResponse()


def add_registration(
    driver: str,
    endpoint: Path,
    server: grpc.Server,
    *,
    on_registered: Callable[[], None] = lambda: None,
) -> None:
    """Serve the registration of ``driver``, whose services are at ``endpoint``."""
    servicer = Registration(driver, endpoint, on_registered)
    api_pb2_grpc.add_RegistrationServicer_to_server(servicer, server)
