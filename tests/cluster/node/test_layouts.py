"""A layout on a real node: pods get its ready slices, and none is made or removed for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra.common.resources import Obj
from hack.cluster.api import Api
from hack.cluster.kubelet import KubeletNode
from sim.processes import Process, wait_for
from tests.cluster.harness.agreement import Agreement
from tests.cluster.harness.daemons import Driver
from tests.cluster.harness.workload import Workload

LABEL = "nvidia.com/mig.config"
FILE = """
version: v1
mig-configs:
  two-sizes:
  - devices: all
    mig-enabled: true
    mig-devices: {"2g.10gb": 1, "1g.5gb": 2}
"""


@pytest.fixture
def plugin(driver: Driver, kubelet: KubeletNode, tmp_path: Path) -> Iterator[Process]:
    """A plugin that has layouts, in the place of the usual one."""
    (tmp_path / "config.yaml").write_text(FILE)
    with driver.in_place(kubelet.name, "--node-classes", str(tmp_path)) as plugin:
        yield plugin


def changes(agreement: Agreement) -> int:
    """Calls so far that made or removed GPU instances."""
    names = [call.function for call in agreement.machine.mutations()]
    return sum("CreateGpuInstance" in n or "GpuInstanceDestroy" in n for n in names)


def mode(api: Api, node: str) -> Obj:
    found: Obj = api.get("MigNode", node)["status"].get("mode") or {}
    return found


@pytest.mark.timeout(300)
def test_pods_take_turns_on_ready_slices_and_the_label_ends_them(
    *,
    agreement: Agreement,
    api: Api,
    kubelet: KubeletNode,
    plugin: Process,
    workload: Workload,
    where: dict[str, Any],
) -> None:
    before = len(agreement.machine.gpu().gpu_instances)
    path = f"/api/v1/nodes/{kubelet.name}"

    def label(value: str | None) -> None:
        body = {"metadata": {"labels": {LABEL: value}}}
        api.request("PATCH", path, body=body, content="application/merge-patch+json")

    label("two-sizes")
    done = {"mode": "layout", "layout": "two-sizes", "state": "success"}
    wait_for("the layout", lambda: mode(api, kubelet.name) == done, timeout=60)
    made = changes(agreement)
    assert len(agreement.machine.gpu().gpu_instances) == before + 3

    claims = {"gpu": workload.template("slice", device_class="mig-min-10gb")}
    for name in ("first", "second"):
        workload.run(name, claims=claims, **where)
        claim = workload.claim_of(name)
        assert claim is not None
        api.delete("Pod", name)
        workload.wait_for_end(claim, timeout=60)
    assert changes(agreement) == made, "a claim made or removed a GPU instance"
    label(None)
    wait_for(
        "the end of the layout",
        lambda: len(agreement.machine.gpu().gpu_instances) == before,
        timeout=60,
    )
    assert plugin.running
