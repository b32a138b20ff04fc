"""Configuration for this driver, of claims and classes, and the sharing of devices that it sets.

Combinations that are refused have one text each, whoever finds them: controller, node or command
line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from api.config import (
    GPU_KIND,
    KIND,
    NOT_SHARED,
    MpsConfig,
    Named,
    SharingConfig,
    decode_named,
)
from api.errors import InvalidObjectError
from dra.common.resources import at
from dra.gpu.shares import NO_ASK, Ask

MPS = "MPS"
TIME_SLICING = "TimeSlicing"
OFFERED = {MPS: "SharingMPS", TIME_SLICING: "SharingTimeSlicing"}
"""Words in ``status.capabilities`` of a node that serves a strategy."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """The sharing of one request's devices. ``kind``: kind of the configuration that sets it."""

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


@dataclass(frozen=True, slots=True)
class Setting:
    """One configuration for the driver.

    ``number``: its place in the configuration of its claim or class. ``requests``: the requests
    whose devices it concerns; empty for all. ``said``: its content, or why that cannot be
    understood.
    """

    number: int
    requests: frozenset[str]
    said: Named | InvalidObjectError

    def concerns(self, request: str) -> bool:
        """True if it is for ``request``, which may be ``request/subrequest``."""
        names = self.requests
        return not names or request in names or request.partition("/")[0] in names

    def read(self) -> Named:
        """The parts that its parameters name.

        Raises:
            InvalidObjectError: it cannot be understood.
        """
        if isinstance(self.said, InvalidObjectError):
            raise self.said.with_traceback(None)
        return self.said


Settings = tuple[Setting, ...]


def settings_of(
    entries: Iterable[Mapping[str, Any]], driver: str, *, of_class: bool = False
) -> Settings:
    """Those of ``entries`` that are for ``driver``, in their order.

    ``entries`` are those of ``spec.config`` of a class, of ``spec.devices.config`` of a claim, or
    of ``status.allocation.devices.config``, where those of a class come first.
    """
    return tuple(
        Setting(
            number,
            frozenset(at(entry, "requests")),
            _said(entry, of_class=of_class or entry.get("source") == "FromClass"),
        )
        for number, entry in enumerate(entries)
        if at(entry, "opaque", "driver") == driver
    )


def _said(entry: Mapping[str, Any], *, of_class: bool) -> Named | InvalidObjectError:
    try:
        return decode_named(entry["opaque"].get("parameters"), of_class=of_class)
    except InvalidObjectError as error:
        return error


def sharing_of(settings: Iterable[Setting], request: str) -> Sharing:
    """Sharing of the devices of ``request``: the last of ``settings`` that sets one for it decides.

    Raises:
        InvalidObjectError: one that concerns the request cannot be understood.
    """
    found = UNSHARED
    for said in (each.read() for each in settings if each.concerns(request)):
        found = found if said.sharing is None else Sharing(said.kind, said.sharing)
    return found


def states_share(settings: Iterable[Setting], request: str) -> str:
    """Kind of the last configuration that states the size of a share for ``request``, or empty.

    Raises:
        InvalidObjectError: one that concerns the request cannot be understood.
    """
    said = [each.read() for each in settings if each.concerns(request)]
    return next((s.kind for s in reversed(said) if _ask(s.share).stated), "")


def asked_share(settings: Iterable[Setting], request: str) -> Ask:
    """Share that is configured for ``request``; other checks report what cannot be understood."""
    fields: dict[str, Any] = {}
    for each in settings:
        if each.concerns(request) and not isinstance(each.said, InvalidObjectError):
            fields |= each.said.share
    return _ask(fields) if fields else NO_ASK


def _ask(share: Mapping[str, Any]) -> Ask:
    return Ask(share.get("memory_mib"), share.get("cores"), anybody=share.get("tenants") == "any")


def misplaced(sharing: Sharing, device: str, *, is_slice: bool) -> str:
    """Fault of ``sharing`` that is not for this type of device, or empty; ``device`` names it."""
    if sharing.config.strategy == "None" or is_slice == (sharing.kind == KIND):
        return ""
    what, kind = ("a slice", KIND) if is_slice else ("a whole GPU", GPU_KIND)
    allowed = "None, MPS" if is_slice else "None, TimeSlicing, MPS"
    return (
        f"sharing.strategy {sharing.config.strategy!r} of kind {sharing.kind} is not for {device}, "
        f"which is {what}: write kind {kind}, whose sharing.strategy may be: {allowed}"
    )


def not_shared(device: str, *, is_slice: bool) -> str:
    """Fault of a ``share`` for a device that one claim has whole; ``device`` names it."""
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
    """Fault of a ``share`` whose configuration is of the wrong ``kind``, or empty.

    ``device`` names the device, of which a part is asked for.
    """
    right = KIND if is_slice else GPU_KIND
    if kind in ("", right):
        return ""
    what = "a slice" if is_slice else "a whole GPU"
    return f"share of kind {kind} is not for {device}, a part of {what}: write kind {right}"


def too_many(count: str) -> str:
    """Fault of a claim with several devices that are to be shared by MPS; ``count`` in words."""
    return (
        f"a claim may hold one device with sharing.strategy 'MPS', this one holds {count}: its "
        "daemon serves one device, and a CUDA program is a client of one daemon; write a claim for "
        "each such device, and a container for each claim"
    )
