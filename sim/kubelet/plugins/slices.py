"""ResourceSlices of the node, which kubelet deletes when their driver is not there."""

from __future__ import annotations

import logging
import threading
import time

from dra.common.resources import RESOURCE_SLICES
from dra.kube.client import KubeApi
from dra.kube.errors import KubeError, ObjectNotFoundError
from dra.kube.timing import Backoff
from sim.kubelet.plugins.registry import PluginRegistry

_log = logging.getLogger(__name__)

WIPING_SECONDS = 30.0
"""Time that kubelet waits for a driver that went away (defaultWipingDelay)."""


class SliceWiper:
    """Deletes the node's slices at its start, and a driver's ``delay`` seconds after it left."""

    def __init__(
        self,
        api: KubeApi,
        node: str,
        registry: PluginRegistry,
        *,
        delay: float = WIPING_SECONDS,
    ) -> None:
        self._api = api
        self._node = node
        self._registry = registry
        self._delay = delay
        self._gone_since: dict[str, float | None] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="slice wiper", daemon=True)

    def start(self) -> None:
        """Deletes what is there, then watches the registry."""
        self._thread.start()

    def stop(self) -> None:
        """Deletes nothing more."""
        self._stopping.set()
        self._thread.join(5.0)

    def _run(self) -> None:
        self._wipe_until_done("")
        while not self._stopping.wait(min(1.0, self._delay / 4)):
            for driver, connected in self._registry.connected().items():
                self._look_at(driver, connected=connected)

    def _look_at(self, driver: str, *, connected: bool) -> None:
        if connected:
            self._gone_since.pop(driver, None)
            return
        # None stands for a driver whose slices were wiped since it left.
        since = self._gone_since.setdefault(driver, time.monotonic())
        if since is not None and time.monotonic() - since >= self._delay:
            self._wipe_until_done(driver)
            self._gone_since[driver] = None

    def _wipe_until_done(self, driver: str) -> None:
        backoff = Backoff(first=1.0, limit=300.0)
        while not self._stopping.is_set():
            if driver and self._registry.connected().get(driver):
                return
            try:
                self._wipe(driver)
            except KubeError as error:
                delay = backoff.next_delay()
                _log.warning("deleting ResourceSlices failed, again in %.0f s: %s", delay, error)
                self._stopping.wait(delay)
            else:
                return

    def _wipe(self, driver: str) -> None:
        selector = f"spec.nodeName={self._node}"
        if driver:
            selector += f",spec.driver={driver}"
        for obj in self._api.list(RESOURCE_SLICES, field_selector=selector).items:
            name = obj["metadata"]["name"]
            _log.info("deleting ResourceSlice %s of %s", name, driver or "an earlier kubelet")
            try:
                self._api.delete(RESOURCE_SLICES, name)
            except ObjectNotFoundError:
                continue
