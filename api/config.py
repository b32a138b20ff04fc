"""Opaque configuration of a DeviceClass or a claim: ``MigDeviceConfig`` and ``GpuConfig``.

Its place is ``devices.config[].opaque.parameters`` of a ResourceClaim, or
``config[].opaque.parameters`` of a DeviceClass. It is decoded strictly: an unknown field is
refused, never ignored.
"""

from __future__ import annotations

import functools
import re
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import inspect

from api import nvidia
from api.decoding import decodable
from api.errors import InvalidObjectError, quoted
from api.nvidia import Interval

API_VERSION: Final = "mig.dra.dev/v1alpha1"
KIND: Final = "MigDeviceConfig"
GPU_KIND: Final = "GpuConfig"

PlacementPolicy = Literal["sws", "best-fit", "spread"]
NodePolicy = Literal["none", "binpack", "spread"]
NodeResource = Literal["gpu-memory", "cpu", "memory"]
OnFailure = Literal["wait", "evict"]
BindWhen = Literal["allocated", "made"]
Tenants = Literal["namespace", "any"]
Strategy = Literal["None", "TimeSlicing", "MPS"]

T = TypeVar("T", bound=msgspec.Struct)

_MEMORY: Final = re.compile(r"([1-9][0-9]{0,6})([MG])i")
_MEBIBYTES: Final = {"M": 1, "G": 1024}
_ALL: Final = 100


class TimeSlicingConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Time slices of a whole GPU. ``interval``: NVIDIA's word for the length of a slice."""

    interval: Interval = "Default"


class MpsConfig(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True
):
    """Limits of each client of a claim's MPS daemon.

    ``active_thread_percentage``: a client's share of the multiprocessors; by default all of them.
    ``pinned_device_memory_limit``: a number of ``Mi`` or ``Gi``; empty for no limit.
    """

    active_thread_percentage: Annotated[int, msgspec.Meta(ge=1, le=_ALL)] = _ALL
    pinned_device_memory_limit: str = ""

    @property
    def memory_mebibytes(self) -> int | None:
        """The limit of memory in MiB; None without one."""
        found = _MEMORY.fullmatch(self.pinned_device_memory_limit)
        return int(found[1]) * _MEBIBYTES[found[2]] if found else None

    @property
    def limits_threads(self) -> bool:
        """True if a client gets less than all multiprocessors."""
        return self.active_thread_percentage < _ALL


class SharingConfig(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True
):
    """Sharing of a device. ``time_slicing``, ``mps``: settings for the strategy of that name."""

    strategy: Strategy
    time_slicing: TimeSlicingConfig = TimeSlicingConfig()
    mps: MpsConfig = MpsConfig()


NOT_SHARED: Final = SharingConfig(strategy="None")

SLICES_TAKE_TURNS: Final = (
    "NVIDIA's driver sets the length of turns for whole GPUs only, and processes on one slice take "
    "turns without any setting: leave sharing out and let the pods name the same ResourceClaim, "
    "choose MPS, or ask for a whole GPU (class gpu.dra.dev) with kind GpuConfig; allowed for "
    "slices are: None, MPS"
)


def find_problem(kind: str, sharing: SharingConfig) -> tuple[str, str]:
    """Fault in the ``sharing`` of a configuration of this ``kind``: path of the field, and text.

    Both are empty if there is no fault.
    """
    if kind == "MigDeviceConfig" and sharing.strategy == "TimeSlicing":
        return "sharing.strategy", SLICES_TAKE_TURNS
    settings = (
        ("timeSlicing", "TimeSlicing", sharing.time_slicing != TimeSlicingConfig()),
        ("mps", "MPS", sharing.mps != MpsConfig()),
    )
    for field, strategy, is_set in settings:
        if is_set and sharing.strategy != strategy:
            problem = (
                f"it is for strategy {strategy!r}, and sharing.strategy is {sharing.strategy!r}; "
                f"leave it out, or choose {strategy!r}"
            )
            return f"sharing.{field}", problem
    limit = sharing.mps.pinned_device_memory_limit
    if limit and sharing.mps.memory_mebibytes is None:
        return (
            "sharing.mps.pinnedDeviceMemoryLimit",
            f"{limit[:40]!r} is no whole number of Mi or Gi, such as 512Mi or 8Gi",
        )
    return "", ""


class NodesConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Preference among the nodes that fit, applied before the placement policy.

    ``policy``: ``binpack`` prefers the fullest node, ``spread`` the emptiest, ``none`` leaves the
    choice to the placement policy.
    ``by``: resources, each at most once, by which a node counts as full: the mean of the shares of
    them that are in use. The share of ``gpu-memory`` counts allocated memory slices; the shares of
    ``cpu`` and ``memory`` count the requests of pods.
    """

    policy: NodePolicy
    by: Annotated[tuple[NodeResource, ...], msgspec.Meta(min_length=1)] = (
        "gpu-memory",
        "cpu",
        "memory",
    )


NO_PREFERENCE = NodesConfig("none")


class PlacementConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Preference of the controller among the placements that fit.

    ``policy``: explained in ``docs/configuration.md``. ``nodes``: applied before ``policy``.
    """

    policy: PlacementPolicy = "sws"
    nodes: NodesConfig = NO_PREFERENCE


class PreparationConfig(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True
):
    """Rules for the making of slices on the node.

    ``on_failure``: action for a bound pod whose slice its node cannot make, or has failed to make
    several times. ``wait``: the pod stays where it is. ``evict``: the controller evicts the pod, if
    nothing of it has run and its owner makes another pod.
    ``bind_when``: event upon which a pod may be bound: its claims are ``allocated``, or their
    slices are ``made``.
    """

    on_failure: OnFailure = "evict"
    bind_when: BindWhen = "allocated"


class ShareConfig(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    rename="camel",
    kw_only=True,
    omit_defaults=True,
):
    """Part of a shared GPU or slice that one claim gets, if the claim cannot state capacities.

    ``memory_mib``: limit of memory; by default the device's memory divided by its number of shares.
    ``cores``: limit in percent; by default none.
    ``tenants``: ``any`` lets claims of several namespaces share one device; only a DeviceClass may
    say that.
    """

    memory_mib: Annotated[int, msgspec.Meta(ge=1)] | None = msgspec.field(
        default=None, name="memoryMiB"
    )
    cores: Annotated[int, msgspec.Meta(ge=0, le=100)] | None = None
    tenants: Tenants = "namespace"


class DeviceConfig(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    rename="camel",
    kw_only=True,
):
    """Base of both kinds: configuration of the devices of a request."""

    api_version: Literal["mig.dra.dev/v1alpha1"]
    placement: PlacementConfig = PlacementConfig()
    preparation: PreparationConfig = PreparationConfig()
    sharing: SharingConfig = NOT_SHARED
    share: ShareConfig = ShareConfig()


@decodable
class MigDeviceConfig(DeviceConfig, frozen=True, kw_only=True):
    """Configuration of slices; ``placement`` and ``preparation`` count for whole GPUs too."""

    kind: Literal["MigDeviceConfig"]


@decodable
class GpuConfig(DeviceConfig, frozen=True, kw_only=True):
    """Configuration of whole GPUs."""

    kind: Literal["GpuConfig"]


DEFAULT = MigDeviceConfig(api_version=API_VERSION, kind=KIND)
_KINDS: Final[dict[object, type[MigDeviceConfig | GpuConfig]]] = {
    KIND: MigDeviceConfig,
    GPU_KIND: GpuConfig,
}


READABLE: Final[dict[tuple[str, str], type[msgspec.Struct]]] = {
    **{
        (API_VERSION, kind): found
        for kind, found in ((KIND, MigDeviceConfig), (GPU_KIND, GpuConfig))
    },
    **{(nvidia.API_VERSION, kind): found for kind, found in nvidia.KINDS.items()},
}
"""Types of all configurations that are read, by apiVersion and kind."""


def decode(parameters: object) -> MigDeviceConfig | GpuConfig:
    """Decode ``parameters``, the JSON object of an opaque configuration.

    A configuration of NVIDIA's DRA driver is translated to one of this project.

    Raises:
        InvalidObjectError: ``parameters`` is no object, or has an unknown field or a bad value;
            names the field.
    """
    if not isinstance(parameters, dict):
        raise InvalidObjectError(KIND, "", "the parameters must be an object")
    version, kind = parameters.get("apiVersion"), parameters.get("kind")
    if version == nvidia.API_VERSION:
        parameters = translated(parameters)
        version = API_VERSION
    if version != API_VERSION or not isinstance(kind, str) or kind not in _KINDS:
        raise InvalidObjectError(
            KIND,
            "",
            f"apiVersion and kind must be {API_VERSION!r} and {KIND!r}, or {GPU_KIND!r} for whole "
            f"GPUs, not {quoted(version)} and {quoted(kind)}",
        )
    config = convert(parameters, _KINDS[kind], kind)
    by = config.placement.nodes.by
    twice = next((name for name in by if by.count(name) > 1), None)
    if twice is not None:
        raise InvalidObjectError(kind, "placement.nodes.by", f"{twice!r} stands there twice")
    path, problem = find_problem(kind, config.sharing)
    if problem:
        raise InvalidObjectError(kind, path, problem)
    return config


def translated(parameters: dict[str, Any]) -> dict[str, Any]:
    """Translation of a configuration of NVIDIA's DRA driver into one of this project.

    Raises:
        InvalidObjectError: this driver has nothing like it; names the field.
    """
    kind = parameters.get("kind")
    if not isinstance(kind, str) or kind not in nvidia.KINDS:
        kinds = ", ".join(sorted(nvidia.KINDS))
        problem = (
            f"of {nvidia.API_VERSION} kind {quoted(kind)} is not served here; allowed are: {kinds}"
        )
        raise InvalidObjectError(KIND, "kind", problem)
    sharing = nvidia.sharing_fields(convert(parameters, nvidia.KINDS[kind], kind))
    made = {"apiVersion": API_VERSION, "kind": kind}
    return made if sharing is None else {**made, "sharing": sharing}


class Named(NamedTuple):
    """Settings that a configuration states; it leaves all others to other configurations.

    ``placement``, ``preparation``, ``share``: values by field name, only of the fields that are
    stated. ``sharing``: None if it is not stated.
    """

    kind: str
    placement: dict[str, Any]
    preparation: dict[str, Any]
    share: dict[str, Any]
    sharing: SharingConfig | None


def decode_named(parameters: object, *, of_class: bool) -> Named:
    """Settings that the ``parameters`` of a class (``of_class``) or of a claim state.

    Raises:
        InvalidObjectError: as for ``decode``; also if a claim states ``share.tenants``.
    """
    config = decode(parameters)
    share = _named(config.share, parameters, "share")
    if "tenants" in share and not of_class:
        raise InvalidObjectError(
            config.kind, "share.tenants", "only a DeviceClass may say it: take it out of the claim"
        )
    return Named(
        config.kind,
        _named(config.placement, parameters, "placement"),
        _named(config.preparation, parameters, "preparation"),
        share,
        config.sharing if isinstance(parameters, dict) and "sharing" in parameters else None,
    )


def _named(said: msgspec.Struct, parameters: object, part: str) -> dict[str, Any]:
    """Values of ``said`` by field name, only of the fields that ``parameters`` have in ``part``."""
    given = parameters.get(part, {}) if isinstance(parameters, dict) else {}
    # msgspec.inspect would take a hundred times as long, and this runs for each claim.
    names = zip(said.__struct_fields__, said.__struct_encode_fields__, strict=True)
    return {name: getattr(said, name) for name, written in names if written in given}


def encode(config: MigDeviceConfig | GpuConfig) -> dict[str, Any]:
    """The configuration as the JSON object that users write."""
    encoded: dict[str, Any] = msgspec.to_builtins(config)
    return encoded


_MOST: Final = 200
"""Most characters of a user's text in a message."""

_FIELD_PROBLEMS: Final = {
    "unknown field `": "unknown field",
    "missing required field `": "the field is missing",
}


def convert(parameters: dict[str, Any], wanted: type[T], kind: str) -> T:
    """Convert ``parameters`` to the type ``wanted``; ``kind``: the object's kind, for errors.

    Raises:
        InvalidObjectError: unknown or missing field, or bad value; names the field, and the words
            that the field takes.
    """
    try:
        return msgspec.convert(parameters, wanted)
    except msgspec.ValidationError as error:
        path, problem = _split(str(error))
        if allowed := _allowed(path, wanted):
            problem = f"{problem}; allowed are: {', '.join(allowed)}"
        raise InvalidObjectError(kind, path, problem) from error


def _split(message: str) -> tuple[str, str]:
    """Path of the field and problem in a message of msgspec, ``<problem> - at `$.a.b```.

    For an unknown or missing field, msgspec names the field in the problem, and the object that
    holds it in the path; here both make the path.
    """
    problem, _, at = message.partition(" - at ")
    path = at.strip("`").removeprefix("$").removeprefix(".")
    for marker, told in _FIELD_PROBLEMS.items():
        if marker in problem:
            field = problem.partition(marker)[2].rstrip("`")
            path = f"{path}.{field}" if path else field
            problem = told
    return path[:_MOST], problem.replace("`", "'")[:_MOST]


@functools.cache
def _known(kind: type[msgspec.Struct]) -> inspect.Type:
    """Msgspec's information about a kind; cached, as it takes half a millisecond to get."""
    return inspect.type_info(kind)


def _allowed(path: str, kind: type[msgspec.Struct]) -> list[str]:
    """Words that the field at a path takes; empty if the field takes no fixed words."""
    found = _known(kind)
    for name in path.split("."):
        if isinstance(found, inspect.UnionType):
            found = next(t for t in found.types if not isinstance(t, inspect.NoneType))
        fields = found.fields if isinstance(found, inspect.StructType) else ()
        found = next((f.type for f in fields if f.encode_name == name.partition("[")[0]), found)
        if "[" in name and isinstance(found, inspect.VarTupleType):
            found = found.item_type
    return [str(each) for each in found.values] if isinstance(found, inspect.LiteralType) else []
