"""The plugins that are registered now, by driver."""

from __future__ import annotations

import threading
from pathlib import Path

from sim.kubelet.errors import RegistrationError
from sim.kubelet.plugins.plugin import Plugin
from sim.kubelet.plugins.record import write_registered


class PluginRegistry:
    """Registered plugins. A driver may have several, during a rolling update. Thread-safe.

    ``root`` is kubelet's, for the record of who is registered.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        write_registered(root, ())
        self._lock = threading.Lock()
        self._plugins: dict[str, list[Plugin]] = {}
        self._known: set[str] = set()

    def add(self, plugin: Plugin) -> None:
        """Registers a plugin.

        Raises:
            RegistrationError: this endpoint is registered for the driver already.
        """
        with self._lock:
            siblings = self._plugins.setdefault(plugin.driver, [])
            if any(other.endpoint == plugin.endpoint for other in siblings):
                raise RegistrationError(
                    f"the endpoint {plugin.endpoint} is already registered for DRA driver "
                    f"{plugin.driver}"
                )
            siblings.append(plugin)
            self._known.add(plugin.driver)
            self._write()

    def remove(self, plugin: Plugin) -> None:
        """De-registers and disconnects a plugin."""
        with self._lock:
            siblings = self._plugins.get(plugin.driver, [])
            if plugin in siblings:
                siblings.remove(plugin)
            if not siblings:
                self._plugins.pop(plugin.driver, None)
            self._write()
        plugin.close()

    def get(self, driver: str) -> Plugin | None:
        """The newest connected plugin of the driver, else the newest, else None."""
        with self._lock:
            siblings = self._plugins.get(driver, [])
            for plugin in reversed(siblings):
                if plugin.connected:
                    return plugin
            return siblings[-1] if siblings else None

    def connected(self) -> dict[str, bool]:
        """Every driver ever registered in this process, and whether a plugin of it is connected."""
        with self._lock:
            return {
                driver: any(plugin.connected for plugin in self._plugins.get(driver, []))
                for driver in self._known
            }

    def close(self) -> None:
        """Disconnects all."""
        with self._lock:
            plugins = [plugin for siblings in self._plugins.values() for plugin in siblings]
            self._plugins.clear()
        for plugin in plugins:
            plugin.close()

    def _write(self) -> None:
        write_registered(self._root, self._plugins)
