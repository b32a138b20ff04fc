"""A node's ResourceSlices as the API server has them, and the plugin that writes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dra.common.resources import MIG_NODES, RESOURCE_SLICES, Obj
from tests.kubeletplugin.helpers.rig import DRIVER, Rig

SLICES = "/apis/resource.k8s.io/v1/resourceslices"


def slices(rig: Rig) -> list[Obj]:
    """Those of the node, in the order of their names."""
    selector = f"spec.nodeName={rig.node},spec.driver={DRIVER}"
    found = rig.api.list(RESOURCE_SLICES, field_selector=selector).items
    return sorted(found, key=lambda s: str(s["metadata"]["name"]))


def devices(rig: Rig) -> dict[str, Obj]:
    return {d["name"]: d for s in slices(rig) for d in s["spec"].get("devices", [])}


def generations(rig: Rig) -> set[int]:
    return {s["spec"]["pool"]["generation"] for s in slices(rig)}


def condition(rig: Rig) -> Obj:
    """``SlicesPublished``, or an empty object."""
    found = rig.api.list(MIG_NODES, field_selector=f"metadata.name={rig.node}").items
    conditions = found[0].get("status", {}).get("conditions", []) if found else []
    return next((c for c in conditions if c["type"] == "SlicesPublished"), {})


def published(rig: Rig) -> bool:
    return condition(rig).get("status") == "True"


def writes(rig: Rig) -> list[tuple[str, str]]:
    """Writes of slices that are no dry runs."""
    return [(method, path) for method, path in rig.http.writes if path.startswith(SLICES)]


def idle(rig: Rig) -> bool:
    """Whether the publisher has taken every wish."""
    assert rig.daemon is not None
    return rig.daemon.resource_slices.wait_idle(0)


def looked(rig: Rig) -> bool:
    """Whether the publisher has compared the slices with what they should be."""
    assert rig.daemon is not None
    return rig.daemon.resource_slices._last is not None


def spoil(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, change: Callable[[dict[str, Any]], object]
) -> None:
    """From now on the server's answers to writes of slices are changed on the way."""
    call = type(rig.http).call

    def spoilt(self: Any, method: str, path: str, **more: Any) -> Obj:
        answer = call(self, method, path, **more)
        if method in {"POST", "PUT"} and path.startswith(SLICES):
            change(answer["spec"])
        return answer

    monkeypatch.setattr(type(rig.http), "call", spoilt)


def look_again(rig: Rig) -> None:
    assert rig.daemon is not None
    rig.poll()
