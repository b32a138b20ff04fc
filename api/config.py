"""``MigDeviceConfig``: the opaque configuration that a class or a claim may carry.

It stands in ``devices.config[].opaque.parameters`` of a ResourceClaim or in
``config[].opaque.parameters`` of a DeviceClass, and is decoded strictly: an unknown field is
refused, never ignored.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from api.errors import InvalidObjectError

API_VERSION: Final = "mig.dra.dev/v1alpha1"
KIND: Final = "MigDeviceConfig"

PlacementPolicy = Literal["sws", "best-fit", "first-fit", "mfi", "spread"]


class PlacementConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the controller chooses among the placements that would do.

    ``policy``: ``sws`` costs the cluster the least placeable capacity (the default), ``best-fit``
    fills the fullest GPU first, ``first-fit`` takes the first in name order, ``mfi``
    fragments least, ``spread`` takes the emptiest GPU.
    """

    policy: PlacementPolicy = "sws"


class MigDeviceConfig(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    rename="camel",
    kw_only=True,
):
    """Configuration of the devices of a request."""

    api_version: Literal["mig.dra.dev/v1alpha1"]
    kind: Literal["MigDeviceConfig"]
    placement: PlacementConfig = PlacementConfig()


DEFAULT = MigDeviceConfig(api_version=API_VERSION, kind=KIND)


def decode(parameters: object) -> MigDeviceConfig:
    """The configuration in ``parameters``, the JSON object of an opaque configuration.

    Raises:
        InvalidObjectError: not an object, unknown field, or bad value; names the field.
    """
    if not isinstance(parameters, dict):
        raise InvalidObjectError(KIND, "", "the parameters must be an object")
    found = (parameters.get("apiVersion"), parameters.get("kind"))
    if found != (API_VERSION, KIND):
        raise InvalidObjectError(
            KIND,
            "",
            f"apiVersion and kind must be {API_VERSION!r} and {KIND!r}, "
            f"not {found[0]!r} and {found[1]!r}",
        )
    try:
        return msgspec.convert(parameters, MigDeviceConfig)
    except msgspec.ValidationError as error:
        path, problem = _split(str(error))
        raise InvalidObjectError(KIND, path, problem) from error


def encode(config: MigDeviceConfig) -> dict[str, Any]:
    """The configuration as the JSON object that users write."""
    encoded: dict[str, Any] = msgspec.to_builtins(config)
    return encoded


def _split(message: str) -> tuple[str, str]:
    """Msgspec says ``<problem> - at `$.a.b```; an unknown field is named in the problem itself."""
    problem, _, at = message.partition(" - at ")
    path = at.strip("`").removeprefix("$").removeprefix(".")
    marker = "unknown field `"
    if marker in problem:
        field = problem.partition(marker)[2].rstrip("`")
        path = f"{path}.{field}" if path else field
        problem = "unknown field"
    return path, problem.replace("`", "'")
