"""Sharing that a claim's configuration sets for its devices, and combinations that are refused.

One text each, whoever finds it: controller, node or command line.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from api.config import (
    GPU_KIND,
    KIND,
    NOT_SHARED,
    MpsConfig,
    SharingConfig,
    decode_share,
    decode_sharing,
)
from dra.common.resources import at

MPS = "MPS"
TIME_SLICING = "TimeSlicing"
OFFERED = {MPS: "SharingMPS", TIME_SLICING: "SharingTimeSlicing"}
"""Words in ``status.capabilities`` of a node that serves a strategy."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """The sharing of one request's devices, and the kind of the configuration that says so."""

    kind: str = KIND
    config: SharingConfig = NOT_SHARED

    @property
    def by_mps(self) -> bool:
        """True if an MPS daemon serves the device."""
        return self.config.strategy == MPS

    @property
    def interval(self) -> str:
        """Length of turns on a whole GPU; empty where none is set."""
        is_set = self.config.strategy == TIME_SLICING
        return self.config.time_slicing.interval if is_set else ""

    @property
    def mps(self) -> MpsConfig:
        """Limits of MPS clients; they count if ``by_mps``."""
        return self.config.mps


UNSHARED = Sharing()


class Setting:
    """A configuration for the driver: the devices of some requests, or of all, are to be so.

    It is decoded once, when a request that it concerns is first asked about: a claim may have
    dozens, and hundreds of requests that each of them concerns.
    """

    def __init__(self, requests: Iterable[str], parameters: object) -> None:
        self._requests = frozenset(requests)
        self._parameters = parameters

    def concerns(self, names: Collection[str]) -> bool:
        """True if it is for a request that is called one of ``names``."""
        return not self._requests or not self._requests.isdisjoint(names)

    @cached_property
    def sharing(self) -> Sharing | None:
        """Sharing that it sets; None where it does not speak of it.

        Raises:
            InvalidObjectError: it cannot be understood.
        """
        said = decode_sharing(self._parameters)
        return Sharing(*said) if said is not None else None

    @cached_property
    def share(self) -> Mapping[str, Any]:
        """Fields of the share that it sets, as ``decode_share`` has them.

        Raises:
            InvalidObjectError: it cannot be understood.
        """
        return decode_share(self._parameters, of_class=True)

    @property
    def kind(self) -> str:
        """Kind of a configuration that can be understood."""
        return str(self._parameters["kind"]) if isinstance(self._parameters, dict) else ""


def settings_of(entries: Iterable[Mapping[str, Any]], driver: str) -> tuple[Setting, ...]:
    """Those of the configurations that are for ``driver``, in their order.

    They are entries of ``spec.devices.config`` or of ``status.allocation.devices.config``; those of
    a class come first.
    """
    return tuple(
        Setting(at(entry, "requests"), entry["opaque"].get("parameters"))
        for entry in entries
        if at(entry, "opaque", "driver") == driver
    )


def sharing_of(settings: Iterable[Setting], request: str) -> Sharing:
    """Sharing of the devices of ``request``, of which the last that concerns it decides.

    ``request`` may be ``request/subrequest``.

    Raises:
        InvalidObjectError: one that concerns the request cannot be understood.
    """
    names = (request, request.partition("/")[0])
    said = [each.sharing for each in settings if each.concerns(names)]
    return next((sharing for sharing in reversed(said) if sharing is not None), UNSHARED)


def states_share(settings: Iterable[Setting], request: str) -> str:
    """Kind of the configuration that says how large a part the devices of ``request`` are.

    It is that of the last, as above, that says so; empty if none does.

    Raises:
        InvalidObjectError: as above.
    """
    names = (request, request.partition("/")[0])
    kind = ""
    said: dict[str, Any] = {}
    for each in settings:
        if not each.concerns(names):
            continue
        said |= each.share
        if each.share.get("memory_mib") is not None or each.share.get("cores") is not None:
            kind = each.kind
    return kind if any(said.get(field) is not None for field in ("memory_mib", "cores")) else ""


def misplaced(sharing: Sharing, device: str, *, is_slice: bool) -> str:
    """Fault of ``sharing`` for a device, or for what is called ``device``; empty without one."""
    if sharing.config.strategy == "None" or is_slice == (sharing.kind == KIND):
        return ""
    what, kind = ("a slice", KIND) if is_slice else ("a whole GPU", GPU_KIND)
    allowed = "None, MPS" if is_slice else "None, TimeSlicing, MPS"
    return (
        f"sharing.strategy {sharing.config.strategy!r} of kind {sharing.kind} is not for {device}, "
        f"which is {what}: write kind {kind}, whose sharing.strategy may be: {allowed}"
    )


def not_shared(device: str, *, is_slice: bool) -> str:
    """Fault of a ``share`` of a device, or of what is called ``device``, that one claim has."""
    if is_slice:
        return (
            f"share is not for {device}, which is a slice, and one claim has all of it: leave "
            "share out, ask for a part of a slice (class mig-share.dra.dev), or let the pods name "
            f"the same ResourceClaim, with limits by sharing.strategy 'MPS' of kind {KIND}"
        )
    return (
        f"share is not for {device}, which is a whole GPU, and one claim has all of it: leave "
        "share out, or ask for a part of a GPU (class gpu-share.dra.dev)"
    )


def misplaced_share(kind: str, device: str, *, is_slice: bool) -> str:
    """Fault of a ``share`` in a configuration of ``kind`` for a part of a device; or empty."""
    right = KIND if is_slice else GPU_KIND
    if kind in ("", right):
        return ""
    what = "a slice" if is_slice else "a whole GPU"
    return f"share of kind {kind} is not for {device}, a part of {what}: write kind {right}"


def too_many(count: str) -> str:
    """Fault of a claim of which several devices, in words how many, are to be shared by MPS."""
    return (
        f"a claim may hold one device with sharing.strategy 'MPS', this one holds {count}: its "
        "daemon serves one device, and a CUDA program is a client of one daemon; write a claim for "
        "each such device, and a container for each claim"
    )
