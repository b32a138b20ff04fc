"""Opaque configuration of NVIDIA's DRA driver, as far as this driver can do the same.

Source of the fields: ``api/nvidia.com/resource/v1beta1`` of kubernetes-sigs/dra-driver-nvidia-gpu.
They are decoded as strictly as there: a setting that this driver lacks is refused, never ignored.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Annotated, Any, Final, Literal

import msgspec

from api.decoding import decodable
from api.errors import InvalidObjectError

API_VERSION: Final = "resource.nvidia.com/v1beta1"
GPU_KIND: Final = "GpuConfig"
SLICE_KIND: Final = "MigDeviceConfig"

Interval = Literal["Default", "Short", "Medium", "Long"]
"""Names that NVIDIA's driver has for the length of the turns of processes on a GPU."""

_QUANTITY: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)([KMGT]i|[kMGT])?")
_SUFFIXES: Final = ("", "K", "M", "G", "T")
_MEBIBYTE: Final = 2**20
_DECIMAL, _BINARY = 1000, 1024


class _TimeSlicing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    interval: Interval = "Default"


class _Mps(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", omit_defaults=True
):
    default_active_thread_percentage: Annotated[int, msgspec.Meta(ge=1, le=100)] | None = None
    default_pinned_device_memory_limit: str | int | None = None


class _GpuSharing(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True
):
    strategy: Literal["TimeSlicing", "MPS"]
    time_slicing_config: _TimeSlicing | None = None
    mps_config: _Mps | None = None


class _SliceSharing(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True
):
    strategy: Literal["TimeSlicing", "MPS"]
    mps_config: _Mps | None = None


class _Config(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True
):
    api_version: Literal["resource.nvidia.com/v1beta1"]


@decodable
class GpuConfig(_Config, frozen=True, kw_only=True):
    """Configuration of whole GPUs."""

    kind: Literal["GpuConfig"]
    sharing: _GpuSharing | None = None


@decodable
class MigDeviceConfig(_Config, frozen=True, kw_only=True):
    """Configuration of slices.

    Strategy ``TimeSlicing`` changes nothing in NVIDIA's driver, and is read here as no sharing.
    """

    kind: Literal["MigDeviceConfig"]
    sharing: _SliceSharing | None = None


KINDS: Final[dict[str, type[GpuConfig | MigDeviceConfig]]] = {
    GPU_KIND: GpuConfig,
    SLICE_KIND: MigDeviceConfig,
}


def sharing_fields(config: GpuConfig | MigDeviceConfig) -> dict[str, Any] | None:
    """Field ``sharing`` of this project's configuration with the same meaning; None for no sharing.

    Raises:
        InvalidObjectError: there are settings for another strategy than the chosen one, or a limit
            is no quantity.
    """
    theirs = config.sharing
    if theirs is None:
        return None
    turns = theirs.time_slicing_config if isinstance(theirs, _GpuSharing) else None
    settings = (
        ("mpsConfig", "MPS", theirs.mps_config),
        ("timeSlicingConfig", "TimeSlicing", turns),
    )
    for field, strategy, given in settings:
        if given is not None and theirs.strategy != strategy:
            problem = f"it is for strategy {strategy!r}; leave it out, or choose {strategy!r}"
            raise InvalidObjectError(config.kind, f"sharing.{field}", problem)
    if isinstance(theirs, _SliceSharing) and theirs.strategy == "TimeSlicing":
        return None
    made: dict[str, Any] = {"strategy": theirs.strategy}
    if turns is not None:
        made["timeSlicing"] = {"interval": turns.interval}
    if theirs.mps_config is not None:
        made["mps"] = _limits(theirs.mps_config, config.kind)
    return made


def _limits(mps: _Mps, kind: str) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if mps.default_active_thread_percentage is not None:
        made["activeThreadPercentage"] = mps.default_active_thread_percentage
    limit = mps.default_pinned_device_memory_limit
    if limit is not None:
        mebibytes = _mebibytes(str(limit))
        if mebibytes < 1:
            path = "sharing.mpsConfig.defaultPinnedDeviceMemoryLimit"
            problem = f"{str(limit)[:40]!r} is no quantity of at least 1Mi, such as 512Mi or 8Gi"
            raise InvalidObjectError(kind, path, problem)
        made["pinnedDeviceMemoryLimit"] = f"{mebibytes}Mi"
    return made


def _mebibytes(quantity: str) -> int:
    """Whole MiB of a quantity, rounded down as in NVIDIA's driver; 0 if it is no quantity."""
    found = _QUANTITY.fullmatch(quantity)
    if found is None:
        return 0
    suffix = found[2] or ""
    base = _BINARY if suffix.endswith("i") else _DECIMAL
    power = _SUFFIXES.index(suffix[:1].upper())
    return int(Fraction(found[1]) * base**power / _MEBIBYTE)
