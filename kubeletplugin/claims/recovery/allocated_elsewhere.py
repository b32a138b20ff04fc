"""Claims that were given parts of a GPU that are to go, and for which kubelet has not asked yet."""

from __future__ import annotations

from collections.abc import Iterable

from dra.gpu.geometry import Occupant
from dra.gpu.names import DeviceNameError, GpuDevice, parse_device
from dra.kube.client.transport import KubeApi
from dra.kube.errors import KubeError
from kubeletplugin.claims.recovery.given_devices import allocated_devices, claims_of
from kubeletplugin.errors import StartingError
from kubeletplugin.gpus.gpuunit import GpuUnit
from kubeletplugin.journal.journal import Journal


class AllocatedElsewhere:
    """Asks the API server. Only worth it once nothing on the GPU itself is in the way."""

    def __init__(self, api: KubeApi, journal: Journal, *, driver: str, pool: str) -> None:
        self._api = api
        self._journal = journal
        self._driver = driver
        self._pool = pool

    def names(self, unit: GpuUnit, slices: Iterable[Occupant] | None) -> list[str]:
        """The claims, in words, that were given anything of the GPU but ``slices``.

        With None those that were given it whole.

        Raises:
            StartingError: the API server does not answer.
        """
        places = {(o.profile_id, o.placement.start) for o in slices or ()}
        try:
            claims = claims_of(self._api, driver=self._driver, pool=self._pool)
        except KubeError as error:
            raise StartingError(f"the claims of this node cannot be read: {error}") from error
        found = []
        for ref, name in allocated_devices(claims, driver=self._driver, pool=self._pool):
            try:
                device = parse_device(name)
            except DeviceNameError:
                continue  # nothing of a GPU
            if isinstance(device, GpuDevice):
                is_here, stays = str(device) == unit.name, False
            else:
                is_here = device.gpu == unit.name
                stays = slices is None or (device.profile_id, device.start) in places
            if is_here and not stays:
                found.append(f"claim {ref} ({name})")
        return found
