"""A whole kubelet stand-in: registration, slices, claims and pods of one node."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from dra.kube.client import KubeApi
from sim.kubelet.claims.manager import ClaimManager
from sim.kubelet.node import NodeShape, register_node
from sim.kubelet.plugins.registration import RegistrationLoop
from sim.kubelet.plugins.registry import PluginRegistry
from sim.kubelet.plugins.slices import WIPING_SECONDS, SliceWiper
from sim.kubelet.pods.logs import LogServer
from sim.kubelet.pods.runner import PodRunner, Retries


@dataclass(frozen=True, slots=True)
class Settings:
    """Places of the node's files (``root`` is /var/lib/kubelet) and how patient kubelet is."""

    root: Path
    cdi_root: Path
    retries: Retries = field(default_factory=Retries)
    reconcile_seconds: float = 60.0
    wipe_seconds: float = WIPING_SECONDS


class Kubelet:
    """Runs until :meth:`stop`. Several may live in one process, each with its own root."""

    def __init__(self, api: KubeApi, shape: NodeShape, settings: Settings) -> None:
        settings.root.mkdir(parents=True, exist_ok=True)
        (settings.root / "plugins").mkdir(exist_ok=True)
        self._api = api
        self._shape = shape
        self.plugins = PluginRegistry(settings.root)
        self._registration = RegistrationLoop(settings.root / "plugins_registry", self.plugins)
        self._wiper = SliceWiper(api, shape.name, self.plugins, delay=settings.wipe_seconds)
        self.claims = ClaimManager(api, self.plugins, root=settings.root)
        self._pods = PodRunner(
            api,
            shape.name,
            self.claims,
            root=settings.root,
            cdi_root=settings.cdi_root,
            retries=settings.retries,
            reconcile_seconds=settings.reconcile_seconds,
        )
        self._logs = LogServer(self._pods.log)

    def start(self) -> None:
        """Registers the node and begins.

        Raises:
            dra.kube.errors.KubeError: the node could not be registered.
        """
        register_node(self._api, self._shape, datetime.now(UTC), port=self._logs.port)
        self._logs.start()
        self._wiper.start()
        self._registration.start()
        self._pods.start()

    def stop(self) -> None:
        """Stops as kubelet does: the node, its pods and prepared claims stay as they are."""
        self._logs.stop()
        self._pods.stop()
        self._registration.stop()
        self._wiper.stop()
        self.plugins.close()
