"""``MigNodeClass``, the configuration of a class of nodes, in one file for each class; layouts.

A class chooses the use of its nodes' GPUs: slices made for claims, slices kept as declared in a
layout, or whole GPUs. It is decoded strictly, and everywhere by the same function. A layout
declares the slices of GPUs in the file format of NVIDIA's mig-parted (its ``api/spec/v1``:
``version: v1``, ``mig-configs``), and is read as strictly as by mig-parted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, get_args

from api.errors import InvalidObjectError

LAYOUTS_KIND: Final = "mig-parted configuration"
VERSION: Final = "v1"
CONFIGS: Final = "mig-configs"

_ENTRY_FIELDS = ("device-filter", "devices", "mig-enabled", "mig-devices")
_PROFILE = re.compile(r"(?:\d+c\.)?\d+g\.\d+gb(?:[+-][a-z][a-z0-9.,]*)*")
_LONGEST_ID = 2**32


class DeviceFilter(NamedTuple):
    """Kind of GPU, by PCI ids with the vendor's id in the lower half.

    ``device``: id of the device. ``subsystem``: id of the board; None if any board will do.
    """

    device: int
    subsystem: int | None = None


@dataclass(frozen=True, slots=True)
class LayoutEntry:
    """Declared state of some GPUs of a node.

    ``counts``: number of slices for each profile. ``filters``: kinds of GPUs that the entry is
    about; empty for all. ``indexes``: GPUs that the entry is about, by their position in the order
    of PCI addresses; None for all.
    """

    mig_enabled: bool
    counts: tuple[tuple[str, int], ...] = ()
    filters: tuple[DeviceFilter, ...] = ()
    indexes: tuple[int, ...] | None = None

    def covers(self, index: int, *, device: int, subsystem: int) -> bool:
        """True if the entry is about the GPU at ``index`` with these PCI ids."""
        if self.indexes is not None and index not in self.indexes:
            return False
        return not self.filters or any(
            f.device == device and f.subsystem in {None, subsystem} for f in self.filters
        )


Layout = tuple[LayoutEntry, ...]


def is_layouts(obj: object) -> bool:
    """True if an object is meant to be in mig-parted's format."""
    return isinstance(obj, dict) and CONFIGS in obj and "kind" not in obj


def decode_layouts(obj: object, *, at: str = "", kind: str = LAYOUTS_KIND) -> dict[str, Layout]:
    """Layouts of ``obj`` by name.

    ``kind``, ``at``: kind of the object that contains ``obj``, and the path there; for errors.

    Raises:
        InvalidObjectError: a field that mig-parted refuses as well; names the field.
    """
    prefix = f"{at}." if at else ""

    def refuse(field: str, problem: str) -> InvalidObjectError:
        return InvalidObjectError(kind, (prefix + field).rstrip("."), problem)

    if not isinstance(obj, dict):
        raise refuse("", f"it must be an object with the fields 'version' and {CONFIGS!r}")
    _only_known(obj, ("version", CONFIGS), refuse, "")
    if obj.get("version") != VERSION:
        raise refuse("version", f"{obj.get('version')!r} is not known; allowed are: {VERSION}")
    configs = obj.get(CONFIGS)
    if not isinstance(configs, dict) or not configs:
        wrong = "it is a list, and the names of layouts are keys there: write 'all-1g.5gb:'"
        what = wrong if isinstance(configs, list) else "it must name at least one layout"
        raise refuse(CONFIGS, what)
    return {str(name): _layout(f"{CONFIGS}.{name}", raw, refuse) for name, raw in configs.items()}


def _layout(field: str, raw: object, refuse: Any) -> Layout:
    if not isinstance(raw, list) or not raw:
        raise refuse(field, "it must be a list with at least one entry")
    return tuple(_entry(f"{field}[{i}]", each, refuse) for i, each in enumerate(raw))


def _entry(field: str, raw: object, refuse: Any) -> LayoutEntry:
    if not isinstance(raw, dict):
        raise refuse(field, f"it must be an object; allowed fields are: {', '.join(_ENTRY_FIELDS)}")
    _only_known(raw, _ENTRY_FIELDS, refuse, field)
    enabled = raw.get("mig-enabled")
    if not isinstance(enabled, bool):
        raise refuse(f"{field}.mig-enabled", "allowed are: true, false")
    counts = _counts(f"{field}.mig-devices", raw.get("mig-devices"), refuse)
    if enabled and raw.get("mig-devices") is None:
        raise refuse(
            f"{field}.mig-devices",
            "the field is missing, and mig-enabled is true; {} leaves the GPU to claims",
        )
    if not enabled and counts:
        raise refuse(f"{field}.mig-devices", "it must be empty where mig-enabled is false")
    return LayoutEntry(
        enabled,
        counts,
        _filters(f"{field}.device-filter", raw.get("device-filter"), refuse),
        _indexes(f"{field}.devices", raw.get("devices"), refuse),
    )


def _counts(field: str, raw: object, refuse: Any) -> tuple[tuple[str, int], ...]:
    if raw is None:
        return ()
    if not isinstance(raw, dict):
        raise refuse(field, "it must be an object of profiles with their numbers")
    for name, count in raw.items():
        if not isinstance(name, str) or not _PROFILE.fullmatch(name):
            raise refuse(field, f"{name!r} is no profile; one is written like 1g.5gb or 1g.5gb+me")
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise refuse(f"{field}.{name}", "it must be a whole number, 0 or more")
    if raw and not any(raw.values()):
        raise refuse(field, "all its numbers are 0; {} leaves the GPU to claims")
    return tuple((name, count) for name, count in raw.items() if count)


def _filters(field: str, raw: object, refuse: Any) -> tuple[DeviceFilter, ...]:
    texts = raw if isinstance(raw, list) else [raw] if raw else []
    return tuple(_filter(field, text, refuse) for text in texts)


def _filter(field: str, text: object, refuse: Any) -> DeviceFilter:
    try:
        if not isinstance(text, str):
            raise TypeError  # noqa: TRY301 - refused below
        ids = [int(part, 0) for part in text.split(":")]
    except (TypeError, ValueError):
        ids = []
    if not 1 <= len(ids) <= 2 or not all(0 <= n < _LONGEST_ID for n in ids):  # noqa: PLR2004
        raise refuse(
            field, f"{text!r} is no PCI device and vendor id; one is written like '0x20B010DE'"
        )
    return DeviceFilter(*ids)


def _indexes(field: str, raw: object, refuse: Any) -> tuple[int, ...] | None:
    if raw == "all":
        return None
    if isinstance(raw, list) and all(isinstance(n, int) and not isinstance(n, bool) for n in raw):
        return tuple(raw)
    raise refuse(field, f"{raw!r} is not allowed; allowed are: all, or a list of numbers from 0 on")


def _only_known(raw: Mapping[str, Any], known: tuple[str, ...], refuse: Any, field: str) -> None:
    unknown = next((name for name in raw if name not in known), None)
    if unknown is not None:
        at = f"{field}.{unknown}" if field else str(unknown)
        raise refuse(at, f"unknown field; allowed are: {', '.join(known)}")


API_VERSION: Final = "mig.dra.dev/v1alpha1"
KIND: Final = "MigNodeClass"

Mode = Literal["on-demand", "layout", "whole"]
MigModePolicy = Literal["keep", "enable", "switch"]
MODES: Final[tuple[str, ...]] = get_args(Mode)
POLICIES: Final[tuple[str, ...]] = get_args(MigModePolicy)
_FIELDS = (
    *("apiVersion", "kind", "metadata", "mode", "layout", "migMode", "layouts"),
    *("shares", "sliceShares"),
)
_MOST_SHARES = 64


@dataclass(frozen=True, slots=True)
class NodeClass:
    """Configuration of the nodes of a class.

    ``mode``: ``on-demand`` has slices made for claims, ``layout`` keeps slices ready as ``layout``
    declares them, ``whole`` gives GPUs out whole. A label of the Node overrides it.
    ``layout``: name of the layout for mode ``layout``.
    ``mig_mode``: permitted changes of the MIG mode of idle GPUs that need no reset for it.
    ``keep``: none. ``enable``: on, where slices are wanted. ``switch``: also off, where whole GPUs
    are wanted.
    ``layouts``: layouts of this class by name; they override layouts of other files.
    ``shares``: number of claims that may have a GPU outside MIG mode at the same time.
    ``slice_shares``: number of claims of shares that may have one slice at the same time.
    """

    mode: Mode = "on-demand"
    layout: str = ""
    mig_mode: MigModePolicy = "keep"
    layouts: dict[str, Layout] = field(default_factory=dict)
    shares: int = 1
    slice_shares: int = 1


DEFAULT = NodeClass()


def decode_node_class(obj: object) -> NodeClass:
    """Decode an object from JSON or YAML; its ``metadata`` is ignored.

    Raises:
        InvalidObjectError: unknown field or bad value; names the field and the allowed values.
    """
    if not isinstance(obj, dict):
        raise InvalidObjectError(KIND, "", "it must be an object")
    found = (obj.get("apiVersion"), obj.get("kind"))
    if found != (API_VERSION, KIND):
        raise InvalidObjectError(
            KIND,
            "",
            f"apiVersion and kind must be {API_VERSION!r} and {KIND!r}, "
            f"not {found[0]!r} and {found[1]!r}",
        )
    unknown = next((name for name in obj if name not in _FIELDS), None)
    if unknown is not None:
        allowed = ", ".join(_FIELDS)
        raise InvalidObjectError(KIND, str(unknown), f"unknown field; allowed are: {allowed}")
    mode: Any = _word(obj, "mode", MODES, DEFAULT.mode)
    policy: Any = _word(obj, "migMode", POLICIES, DEFAULT.mig_mode)
    layouts = obj.get("layouts")
    decoded = {} if layouts is None else decode_layouts(layouts, at="layouts", kind=KIND)
    layout = obj.get("layout", "")
    if not isinstance(layout, str):
        raise InvalidObjectError(KIND, "layout", f"{layout!r} is no name of a layout")
    if mode == "layout" and not layout:
        raise InvalidObjectError(
            KIND, "layout", "the field is missing, and mode is 'layout'; name one of the layouts"
        )
    return NodeClass(
        mode,
        layout,
        policy,
        decoded,
        shares=_shares(obj, "shares"),
        slice_shares=_shares(obj, "sliceShares"),
    )


def _shares(obj: dict[str, Any], name: str) -> int:
    shares = obj.get(name, 1)
    if isinstance(shares, bool) or not isinstance(shares, int) or not 1 <= shares <= _MOST_SHARES:
        problem = f"{shares!r} is not allowed; allowed are whole numbers from 1 to {_MOST_SHARES}"
        raise InvalidObjectError(KIND, name, problem)
    return shares


def _word(obj: dict[str, Any], name: str, allowed: tuple[str, ...], default: str) -> Any:
    value = obj.get(name, default)
    if value not in allowed:
        raise InvalidObjectError(
            KIND, name, f"{value!r} is not allowed; allowed are: {', '.join(allowed)}"
        )
    return value
