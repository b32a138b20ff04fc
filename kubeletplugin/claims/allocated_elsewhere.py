"""Claims that were given parts of a GPU that are to go, and for which kubelet has not asked yet.

Claims cannot be selected by their allocation, so that finding them takes a list. One is made once a
node has nothing on offer any more of what is to change: what was given out is on it then, and can
only go. Whether it is gone yet is asked by name.

Two lists select what can be it: claims whose label names this node, and claims without the label,
which the controller writes after the allocation, in a burst many seconds after it. One whose label
names another node, by hand or from an earlier allocation, is not waited for: its Prepare says so.
"""

from __future__ import annotations

from collections.abc import Iterable

from dra.claims.allocation import label_of, node_label
from dra.common.resources import Obj
from dra.gpu.geometry import Occupant
from dra.gpu.inventory import ClaimRef
from dra.gpu.names import DeviceNameError, GpuDevice, parse_device
from dra.kube.errors import KubeError
from dra.kube.timing import Backoff, Clock
from kubeletplugin.claims.lookup import ClaimReader
from kubeletplugin.errors import StartingError
from kubeletplugin.gpus.gpu import GpuUnit
from kubeletplugin.times import GIVEN_PAUSE_SECONDS, LONGEST_GIVEN_PAUSE_SECONDS

_Given = dict[ClaimRef, tuple[str, ...]]


class AllocatedElsewhere:
    """Owned by one thread. The API server is asked by :meth:`look` alone.

    It costs a change of the node's GPUs two lists, by pages, more only where they fail, and then
    after growing pauses; and while claims are in the way, a request for one that stays, and for
    each that went, every time.
    """

    def __init__(self, claims: ClaimReader, *, clock: Clock) -> None:
        self._claims = claims
        self._clock = clock
        self._given: _Given = {}
        self._listed_at = float("-inf")
        self._failure = ""
        self._pause = Backoff(first=GIVEN_PAUSE_SECONDS, limit=LONGEST_GIVEN_PAUSE_SECONDS)
        self._in_the_way: set[ClaimRef] = set()

    def names(
        self, unit: GpuUnit, slices: Iterable[Occupant] | None, *, since: float
    ) -> list[str] | None:
        """The claims, in words, that were given anything of the GPU but ``slices``.

        With ``slices`` None those that were given it whole. None if they are not known as of
        ``since``, a monotonic time.

        Raises:
            StartingError: they could not be read.
        """
        if self._listed_at < since:
            if self._failure:
                raise StartingError(f"the claims of this node cannot be read: {self._failure}")
            return None
        places = None if slices is None else {(o.profile_id, o.placement.start) for o in slices}
        found = []
        for ref, devices in self._given.items():
            taken = [d for d in devices if _takes(d, unit, places)]
            if taken:
                self._in_the_way.add(ref)
            found += [f"claim {ref} ({device})" for device in taken]
        return found

    def look(self, since: float) -> bool:
        """Learn who has what, as of ``since``, and which of those in the way have gone.

        To be called without a lock. True if something new is known. Never raises KubeError.
        """
        in_the_way, self._in_the_way = self._in_the_way, set()
        if self._listed_at >= since:
            return self._check([ref for ref in self._given if ref in in_the_way])
        now = self._clock.monotonic()
        if self._pause.left(now):
            return False
        try:
            self._given, self._listed_at, self._failure = self._list(), now, ""
        except KubeError as error:
            self._failure = str(error)
            self._pause.fail(now)
        else:
            self._pause.reset()
        return True

    def _list(self) -> _Given:
        key = node_label(self._claims.driver)
        given: _Given = {}
        # In this order, so that none is missed which gets its label in between.
        for selector in (f"!{key}", f"{key}={label_of(self._claims.pool)}"):
            for obj in self._claims.listed(selector):
                given |= self._held(obj)
        return given

    def _check(self, refs: list[ClaimRef]) -> bool:
        """Ask for claims until one is as it was; another begins next time."""
        changed = False
        for ref in refs:
            devices = self._devices(ref)
            if devices is None:
                break
            before = self._given.pop(ref)
            if devices:
                self._given[ref] = devices
            if devices == before:
                break
            changed = True
        return changed

    def _devices(self, ref: ClaimRef) -> tuple[str, ...] | None:
        """Devices that a claim has of this node; None without an answer."""
        try:
            obj = self._claims.find(ref)
            return self._held(obj).get(ref, ()) if obj else ()
        except KubeError:
            return None

    def _held(self, obj: Obj) -> _Given:
        """A claim with the devices that it was given, if any; of ``adminAccess`` they hold nothing.

        Raises:
            KubeError: the claim cannot be read.
        """
        given = [g for g in self._claims.given_here(obj) if not g.device.admin_access]
        return {given[0].claim: tuple(g.device.device for g in given)} if given else {}


def _takes(device: str, unit: GpuUnit, places: set[tuple[int | None, int]] | None) -> bool:
    """True if a device is of the GPU, and neither at one of the places nor, with None, a slice."""
    try:
        named = parse_device(device)
    except DeviceNameError:
        return False  # nothing of a GPU
    if isinstance(named, GpuDevice):
        return str(named) == unit.name
    if named.gpu != unit.name or places is None:
        return False
    return (named.profile_id, named.start) not in places
