"""``MigNodeClass``: the configuration of a class of nodes, one file a class.

It says what becomes of the GPUs of a node: cut for claims, partitioned as declared, or given whole.
It is decoded strictly, by the same function wherever it is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

from api.errors import InvalidObjectError
from api.layouts import Layout, decode_layouts

API_VERSION: Final = "mig.dra.dev/v1alpha1"
KIND: Final = "MigNodeClass"

Mode = Literal["on-demand", "layout", "whole"]
MigModePolicy = Literal["keep", "enable", "switch"]
MODES: Final[tuple[str, ...]] = get_args(Mode)
POLICIES: Final[tuple[str, ...]] = get_args(MigModePolicy)
_FIELDS = (
    *("apiVersion", "kind", "metadata", "mode", "layout", "migMode", "layouts"),
    *("shares", "sliceShares", "hamiCore"),
)
_MOST_SHARES = 64


@dataclass(frozen=True, slots=True)
class NodeClass:
    """Configuration of the nodes of a class.

    ``mode``: ``on-demand`` has slices made for claims, ``layout`` keeps slices ready as ``layout``
    declares them, ``whole`` gives GPUs out whole; a label of the Node goes before it. ``mig_mode``
    says what may be done to the MIG mode of idle GPUs that need no reset for it: ``keep`` leaves it
    as it is, ``enable`` turns it on where slices are wanted, ``switch`` also turns it off where
    GPUs are wanted whole. ``layouts`` go before those of other files. ``shares`` is how many claims
    may have a GPU at a time that is not in MIG mode, ``slice_shares`` how many claims of shares
    may have one slice. ``hami_core`` is a directory of the node with HAMi-core's ``libvgpu.so`` and
    ``ld.so.preload``, which holds those of whole GPUs to their limits; empty where nothing does.
    """

    mode: Mode = "on-demand"
    layout: str = ""
    mig_mode: MigModePolicy = "keep"
    layouts: dict[str, Layout] = field(default_factory=dict)
    shares: int = 1
    hami_core: str = ""
    slice_shares: int = 1


DEFAULT = NodeClass()


def decode_node_class(obj: object) -> NodeClass:
    """The class in an object as JSON or YAML has it; ``metadata`` is nobody's.

    Raises:
        InvalidObjectError: unknown field or bad value; names the field and what is allowed.
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
    slice_shares, hami_core = _shares(obj, "sliceShares"), _directory(obj, "hamiCore")
    if hami_core and slice_shares > 1:
        raise InvalidObjectError(
            KIND,
            "hamiCore",
            "HAMi-core holds claims of whole GPUs (shares) to their limits and none of slices "
            "(sliceShares): leave one of the two out, or write a class for other nodes; claims "
            "that share a slice are limited by sharing.strategy 'MPS'",
        )
    return NodeClass(
        mode,
        layout,
        policy,
        decoded,
        shares=_shares(obj, "shares"),
        hami_core=hami_core,
        slice_shares=slice_shares,
    )


def _shares(obj: dict[str, Any], name: str) -> int:
    shares = obj.get(name, 1)
    if isinstance(shares, bool) or not isinstance(shares, int) or not 1 <= shares <= _MOST_SHARES:
        problem = f"{shares!r} is not allowed; allowed are whole numbers from 1 to {_MOST_SHARES}"
        raise InvalidObjectError(KIND, name, problem)
    return shares


def _directory(obj: dict[str, Any], name: str) -> str:
    path = obj.get(name, "")
    if not isinstance(path, str) or (path and not path.startswith("/")) or ".." in path.split("/"):
        problem = f"{path!r} is no absolute path of the node, such as /usr/local/vgpu"
        raise InvalidObjectError(KIND, name, problem)
    return path.rstrip("/")


def _word(obj: dict[str, Any], name: str, allowed: tuple[str, ...], default: str) -> Any:
    value = obj.get(name, default)
    if value not in allowed:
        raise InvalidObjectError(
            KIND, name, f"{value!r} is not allowed; allowed are: {', '.join(allowed)}"
        )
    return value
