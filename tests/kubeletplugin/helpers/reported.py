"""Reports of a node: events, verdicts of its claims, and reasons of its GPUs."""

from __future__ import annotations

from dra.claims.conditions import failed_prepare
from dra.common.resources import EVENTS, RESOURCE_CLAIMS, Obj
from dra.gpu.inventory import ClaimRef
from tests.kubeletplugin.helpers.rig import DRIVER, Rig


def events(rig: Rig, name: str) -> list[tuple[str, str]]:
    """Reason and message of all events about an object of this name."""
    found = rig.api.list(EVENTS, field_selector=f"involvedObject.name={name}").items
    return [(e["reason"], e["message"]) for e in found]


def verdict(rig: Rig, ref: ClaimRef) -> str:
    """What the controller reads of the claim."""
    assert rig.statuses_idle()
    found: Obj = rig.api.get(RESOURCE_CLAIMS, ref.name, namespace=ref.namespace)
    return failed_prepare(found, driver=DRIVER)


def reasons(rig: Rig) -> list[str]:
    return [g.get("reason", "") for g in rig.mignode()["status"]["gpus"]]
