"""What the driver's daemons find in a cluster when they start: their namespace and resource."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from api.crds import mignode_definition
from hack.cluster.api import ApiError
from hack.cluster.driver.chart import NAMESPACE
from hack.cluster.waiting import wait_for

if TYPE_CHECKING:
    from hack.cluster.api import Api


def make_namespace(api: Api) -> None:
    """The namespace of the driver."""
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})


def serve_mignodes(api: Api) -> None:
    """Our resource; returns when it is served."""
    api.create(mignode_definition())

    def served() -> bool:
        # Not at once, not even after the condition Established: 404, then 429.
        with contextlib.suppress(ApiError):
            return api.list("MigNode") == []
        return False

    wait_for("MigNode", served)
