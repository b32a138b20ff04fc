"""One registered DRA plugin: its connection and the two calls of DRAPlugin."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc

from api.kubelet.dra.v1 import api_pb2 as v1
from api.kubelet.dra.v1 import api_pb2_grpc as v1_grpc
from api.kubelet.dra.v1beta1 import api_pb2 as v1beta1
from api.kubelet.dra.v1beta1 import api_pb2_grpc as v1beta1_grpc
from dra.gpu.inventory import ClaimRef
from sim.kubelet.errors import ClaimError

CALL_SECONDS = 45.0
"""Time limit of kubelet for each call (defaultClientCallTimeout)."""

SERVICES = {"v1.DRAPlugin": (v1, v1_grpc), "v1beta1.DRAPlugin": (v1beta1, v1beta1_grpc)}
"""Supported version string to message and stub modules (servicesSupportedByKubelet)."""


_POLL_SECONDS = 0.3


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """A device of a NodePrepareResources response; no request names means all requests."""

    request_names: tuple[str, ...]
    pool: str
    device: str
    cdi_ids: tuple[str, ...]


class Plugin:
    """A connection to the DRA service of one plugin instance, kept open and re-made when lost."""

    def __init__(self, *, driver: str, endpoint: str, service: str) -> None:
        self.driver = driver
        self.endpoint = endpoint
        self._messages, stubs = SERVICES[service]
        self._channel = grpc.insecure_channel(
            f"unix:{endpoint}",
            options=[("grpc.max_reconnect_backoff_ms", 1000), ("grpc.enable_http_proxy", 0)],
        )
        self._stub: Any = stubs.DRAPluginStub(self._channel)
        self._connected = threading.Event()
        self._closed = False
        self._channel.subscribe(self._state_changed, try_to_connect=True)

    @property
    def connected(self) -> bool:
        """True if the connection stands."""
        return self._connected.is_set()

    def close(self) -> None:
        """Ends the connection."""
        self._closed = True
        self._connected.clear()
        self._channel.unsubscribe(self._state_changed)
        # grpc's thread that polls for subscribers raises when the channel is closed under it.
        time.sleep(_POLL_SECONDS)
        self._channel.close()

    def prepare(
        self, claims: Iterable[ClaimRef], *, seconds: float = CALL_SECONDS
    ) -> dict[str, tuple[PreparedDevice, ...]]:
        """NodePrepareResources: claim UID to its devices.

        Raises:
            ClaimError: the call failed, or its answer lacks a claim, has an unknown one or an error
                for one.
        """
        asked = {claim.uid: claim for claim in claims}
        request = self._messages.NodePrepareResourcesRequest(claims=self._claims(asked.values()))
        answers = self._call("NodePrepareResources", request, seconds=seconds)
        _check(self.driver, "NodePrepareResources", asked, answers)
        return {
            uid: tuple(
                PreparedDevice(
                    request_names=tuple(device.request_names),
                    pool=device.pool_name,
                    device=device.device_name,
                    cdi_ids=tuple(device.cdi_device_ids),
                )
                for device in answer.devices
            )
            for uid, answer in answers.items()
        }

    def unprepare(self, claims: Iterable[ClaimRef], *, seconds: float = CALL_SECONDS) -> None:
        """NodeUnprepareResources.

        Raises:
            ClaimError: as for :meth:`prepare`.
        """
        asked = {claim.uid: claim for claim in claims}
        request = self._messages.NodeUnprepareResourcesRequest(claims=self._claims(asked.values()))
        answers = self._call("NodeUnprepareResources", request, seconds=seconds)
        _check(self.driver, "NodeUnprepareResources", asked, answers)

    def _claims(self, claims: Iterable[ClaimRef]) -> list[Any]:
        return [self._messages.Claim(namespace=c.namespace, uid=c.uid, name=c.name) for c in claims]

    def _call(self, method: str, request: Any, *, seconds: float) -> dict[str, Any]:
        try:
            return dict(getattr(self._stub, method)(request, timeout=seconds).claims)
        except grpc.RpcError as error:
            call: Any = error  # what a stub raises is a grpc.Call as well
            raise ClaimError(
                f"{method} of DRA driver {self.driver}: {call.code()}: {call.details()}"
            ) from error
        except ValueError as error:
            raise ClaimError(f"{method} of DRA driver {self.driver}: {error}") from error

    def _state_changed(self, state: grpc.ChannelConnectivity) -> None:
        if state is grpc.ChannelConnectivity.READY:
            self._connected.set()
            return
        self._connected.clear()
        if state is grpc.ChannelConnectivity.IDLE and not self._closed:
            self._channel.subscribe(_ignore, try_to_connect=True)
            self._channel.unsubscribe(_ignore)


def _ignore(state: grpc.ChannelConnectivity) -> None:
    """A subscriber that only makes the channel connect again."""


def _check(
    driver: str, method: str, asked: Mapping[str, ClaimRef], answers: Mapping[str, Any]
) -> None:
    for uid, answer in answers.items():
        if uid not in asked:
            raise ClaimError(f"{method} of DRA driver {driver} answered for unknown claim {uid}")
        if answer.error:
            raise ClaimError(
                f"{method} of DRA driver {driver} failed for claim {asked[uid]}: {answer.error}"
            )
    if missing := len(asked) - len(answers):
        raise ClaimError(f"{method} of DRA driver {driver} skipped {missing} ResourceClaims")
