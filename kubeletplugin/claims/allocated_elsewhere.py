"""Claims with an allocation that is in the way of a change of a GPU, before kubelet asks for them.

The API cannot select claims by their allocation, so they are listed. The list is made once the node
no longer offers the parts of the GPU that are to change: from then on such allocations can only go.
Each claim found is then read by name until it is gone.

Two lists are made: of claims whose label names this node, and of claims without the label. The
controller writes the label after the allocation, in a burst many seconds after it. A claim whose
label names another node, set by hand or left from an earlier allocation, is not waited for; its
Prepare fails with an error.
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
    """Finder of claims whose allocation is in the way of a change of a GPU. For one thread.

    Only :meth:`look` asks the API server.

    Requests for one change of the node's GPUs: two lists, in pages, repeated after growing pauses
    if they fail. Then each call of :meth:`look` reads those claims in the way that have gone, and
    one that is still there.
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
        """Texts that name the claims to which a part of the GPU outside ``slices`` is allocated.

        ``slices``: slices that may stay; None: only claims of the whole GPU are named. ``since``: a
        monotonic time. Returns None if claims were not listed since then.

        Raises:
            StartingError: listing the claims failed.
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
        """List the claims, unless they were listed since ``since``; otherwise look for gone ones.

        Call it without a lock. Returns True if the result of :meth:`names` may have changed. Never
        raises KubeError.
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
        # Unlabelled claims first: one that gets its label in between is in the second list.
        for selector in (f"!{key}", f"{key}={label_of(self._claims.pool)}"):
            for obj in self._claims.listed(selector):
                given |= self._held(obj)
        return given

    def _check(self, refs: list[ClaimRef]) -> bool:
        """Read claims again until one is unchanged or there is no answer; True if any changed."""
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
        """Devices of this node that a claim has now; None if the API server does not answer."""
        try:
            obj = self._claims.find(ref)
            return self._held(obj).get(ref, ()) if obj else ()
        except KubeError:
            return None

    def _held(self, obj: Obj) -> _Given:
        """A claim with its devices of this node; empty if it has none.

        Devices with ``adminAccess`` are left out: they hold nothing.

        Raises:
            KubeError: the claim cannot be read.
        """
        given = [g for g in self._claims.given_here(obj) if not g.device.admin_access]
        return {given[0].claim: tuple(g.device.device for g in given)} if given else {}


def _takes(device: str, unit: GpuUnit, places: set[tuple[int | None, int]] | None) -> bool:
    """True if a device is on the GPU ``unit`` and in the way.

    In the way is the whole GPU, and a slice that is not at one of ``places``, which are profile ids
    and starts. With ``places`` None no slice is in the way.
    """
    try:
        named = parse_device(device)
    except DeviceNameError:
        return False  # not the name of a GPU or slice
    if isinstance(named, GpuDevice):
        return str(named) == unit.name
    if named.gpu != unit.name or places is None:
        return False
    return (named.profile_id, named.start) not in places
