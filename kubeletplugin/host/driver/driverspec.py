"""CDI spec of what all claims of a node have in common: the driver's files and control nodes.

A runtime reads all specs again whenever one comes or goes: what stands here once stands in no
claim's. It opens no GPU: no node of one is in it, and no MIG capability.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from cdi.spec import CdiError, Device, Edits, Spec, driver_kind, joined
from cdi.store import SpecStore
from kubeletplugin.errors import HostError
from kubeletplugin.host.driver.driverfiles import ENV, DriverFiles
from kubeletplugin.host.roots import Roots

COMPUTE = "compute"
VIDEO = "video"
"""Names of its devices: what every container gets, and what decoders and encoders need besides.

They are in journals: one version has a name before the next has kubelet told of it.
"""


@dataclass(frozen=True, slots=True)
class Needs:
    """The driver's files and its control nodes, of which every container needs some.

    ``roots`` are those of the moment in which they were found.
    """

    files: DriverFiles
    control: Edits
    roots: Roots = field(compare=False)


class DriverSpec:
    """Keeps the spec on disk. Thread-safe.

    ``find`` looks for what containers need, and raises HostError if it is not all there.
    """

    def __init__(self, driver: str, store: SpecStore, find: Callable[[], Needs]) -> None:
        self._kind = driver_kind(driver)
        self._store = store
        self._find = find
        self._built: tuple[Needs, Spec] | None = None
        self._writing = threading.Lock()

    def ensure(self, needs: Needs) -> None:
        """Have the file say ``needs``; if it does not, what is found now: that may be newer.

        Raises:
            HostError: it cannot be written, or what containers need is not all there any more.
        """
        try:
            if self._store.has_common(self.build(needs)):
                return
            with self._writing:
                self._store.write_common(self.build(self._find()))
        except CdiError as error:
            raise HostError(str(error)) from error

    def remove(self) -> None:
        """Remove it; that it is not there is fine.

        Raises:
            HostError: it cannot be removed.
        """
        try:
            self._store.remove_common()
        except CdiError as error:
            raise HostError(str(error)) from error

    def qualified(self, names: Iterable[str]) -> tuple[str, ...]:
        """CDI names of some of its devices."""
        return tuple(f"{self._kind}={name}" for name in names)

    def common(self, needs: Needs) -> Edits:
        """Edits of every container; the same object as long as they are the same."""
        return self.build(needs).common

    def build(self, needs: Needs) -> Spec:
        """The spec; the same object as long as it is the same."""
        built = self._built
        if built is None or built[0].files is not needs.files or built[0].control != needs.control:
            built = self._built = (needs, self._build(needs))
        return built[1]

    def _build(self, needs: Needs) -> Spec:
        # A device has to change something, and a driver may be without libraries for video.
        devices = {COMPUTE: Edits(env=ENV), VIDEO: joined(Edits(env=ENV), needs.files.video)}
        return Spec(
            kind=self._kind,
            devices=tuple(Device(name, edits) for name, edits in devices.items()),
            common=joined(needs.control, needs.files.common),
        )
