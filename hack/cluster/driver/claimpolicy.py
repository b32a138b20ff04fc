"""The chart's policy that puts the controller's finalizer on new claims, without the rest of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from dra.common.resources import at
from dra.gpu.names import DEFAULT_DRIVER, class_name, finalizer
from hack.cluster.api import Api, collection
from hack.cluster.driver.chart import render
from hack.cluster.driver.installation import apply, path
from hack.cluster.waiting import wait_for

FLAG = "--finalizer-at-creation"
"""For a controller where the policy is in force."""

_CLAIM = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "asked"},
    "spec": {
        "devices": {
            "requests": [{"name": "r", "exactly": {"deviceClassName": class_name("1g.10gb")}}]
        }
    },
}


@contextlib.contextmanager
def finalizers_at_creation(api: Api) -> Iterator[None]:
    """New claims have the finalizer inside the block."""
    policy = [each for each in render() if each["metadata"]["name"].endswith("-claim-finalizer")]
    for each in policy:
        apply(api, each)
    wait_for("policy", lambda: _finalizers(api) == [finalizer(DEFAULT_DRIVER)])
    yield
    for each in policy:
        api.request("DELETE", path(each))
    wait_for("end of the policy", lambda: _finalizers(api) == [])


def _finalizers(api: Api) -> list[str]:
    """Those of a new claim."""
    made = api.request("POST", f"{collection('ResourceClaim')}?dryRun=All", body=_CLAIM)
    return list(at(made, "metadata", "finalizers"))
