"""The checker of the churn tests sees what must not be, whoever allocated it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.scheduling.ledger import Ledger

DRIVER = "mig.dra.dev"


def event(what: str, name: str, *devices: str, node: str = "a", driver: str = DRIVER) -> Any:
    fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
    results = [{"request": "r", "driver": driver, "pool": node, "device": d} for d in devices]
    allocation = {
        "devices": {"results": results},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": fields}]},
    }
    status = {"allocation": allocation} if devices else {}
    return {"type": what, "object": {"metadata": {"uid": name, "name": name}, "status": status}}


FIRST = event("MODIFIED", "first", "gpu-0-mig-3g20gb-9-4")


@pytest.mark.parametrize(
    "second",
    [
        event("MODIFIED", "second", "gpu-0-mig-3g20gb-9-4"),
        event("MODIFIED", "second", "gpu-0-mig-7g40gb-0-0"),
        event("MODIFIED", "second", "gpu-0-mig-1g5gb-me-20-6"),
        event("ADDED", "second", "gpu-1-mig-1g5gb-19-0", "gpu-0-mig-2g10gb-14-4"),
        event("ADDED", "second", "gpu-1-mig-1g10gb-15-0", "gpu-1-mig-1g5gb-19-1"),
    ],
)
def test_what_overlaps_is_seen(second: Any) -> None:
    ledger = Ledger(DRIVER)
    ledger.enter(FIRST)
    ledger.enter(second)
    assert len(ledger.overlaps) == 1
    assert "second" in ledger.overlaps[0]
