"""Records of the journal that have the right types and yet say what this program cannot use."""

from __future__ import annotations

import re
from typing import get_args

from api.nvidia import Interval
from dra.gpu.names import DeviceNameError, MigDevice, parse_device
from kubeletplugin.journal.entries import Entry, MpsLimits

_UID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,126}[A-Za-z0-9])?")
_OBJECT_NAME = re.compile(r"[a-z0-9](?:[-.a-z0-9]{0,251}[a-z0-9])?")
_MOST_SLICES = 1000
_MOST_PROFILE_ID = 100_000
_MOST_ID = 2**32
_MOST_TEXT = 4096
_MOST_PERCENT = 100
_SHOWN = 80
_INTERVALS = get_args(Interval)


def unusable(entry: Entry) -> str:
    """Reason why a record is useless, even to keep its placement; empty if it is not."""
    claim = entry.claim
    texts = [claim.uid, claim.name, claim.namespace, entry.device, entry.gpu, entry.mig_uuid]
    texts += [entry.profile, entry.boot_id, entry.pool, entry.note, *entry.requests]
    if bad := next((t for t in texts if not _is_text(t)), None):
        return f"{bad[:_SHOWN]!r} is no text for this program"
    if not entry.gpu or not entry.gpu.isprintable():
        return f"{entry.gpu[:_SHOWN]!r} is no GPU's UUID"
    if not _UID.fullmatch(claim.uid):
        return f"{claim.uid[:_SHOWN]!r} is no claim's UID"
    if not all(map(_OBJECT_NAME.fullmatch, (claim.namespace, claim.name))):
        return f"no claim can be called {str(claim)[:_SHOWN]!r}"
    return _no_number(entry)


def _no_number(entry: Entry) -> str:
    place = entry.placement
    if place and not (0 <= place.start < _MOST_SLICES and 0 < place.size < _MOST_SLICES):
        return "its placement is none that a GPU can have"
    numbers = (
        (entry.profile_id, _MOST_PROFILE_ID),
        (entry.gi_id, _MOST_ID),
        (entry.ci_id, _MOST_ID),
    )
    if any(n is not None and not 0 <= n < limit for n, limit in numbers):
        return "its profile or an instance has an id that NVML cannot give"
    return ""


def inconsistent(entry: Entry) -> str:
    """Reason why a record only keeps its placement, and cannot be acted on; empty if it can."""
    try:
        device = parse_device(entry.device)
    except DeviceNameError as error:
        return str(error)
    if isinstance(device, MigDevice):
        return _ill_named(entry, device) or _ill_set(entry)
    if entry.placement is not None:
        return f"{entry.device} is recorded with profile {entry.profile_id} at {entry.placement}"
    return _ill_set(entry)


def _ill_named(entry: Entry, device: MigDevice) -> str:
    place = entry.placement
    named = (device.profile_id, device.start)
    if place is None or named != (entry.profile_id, place.start):
        return f"{entry.device} is recorded with profile {entry.profile_id} at {place}"
    if device.shared == (entry.share is None):
        kind = "a share without amounts" if device.shared else "a share, which its name is not"
        return f"{entry.device} is recorded as {kind}"
    return ""


def _ill_set(entry: Entry) -> str:
    is_slice = entry.placement is not None
    if entry.view and is_slice:
        return f"{entry.device} is recorded as a view, which only a whole GPU can be"
    if entry.interval and (entry.interval not in _INTERVALS or is_slice or entry.view):
        return f"{entry.device} is recorded with a time slice that it cannot have"
    if entry.mps is not None and (entry.view or not _are_limits(entry.mps)):
        return f"{entry.device} is recorded with limits of MPS that it cannot have"
    return ""


def _are_limits(limits: MpsLimits) -> bool:
    threads = limits.threads is None or 0 < limits.threads <= _MOST_PERCENT
    return threads and (limits.mebibytes is None or limits.mebibytes > 0)


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return len(text) <= _MOST_TEXT
