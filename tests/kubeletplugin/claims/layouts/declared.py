"""Layouts of the tests of this folder, and what a node makes of them."""

from __future__ import annotations

from dra.common.resources import NODES, Obj
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.helpers.rig import Rig

A100, H100 = "A100-SXM4-40GB", "H100-80GB-HBM3"
FILE = """
version: v1
mig-configs:
  all-disabled:
    - devices: all
      mig-enabled: false
  pairs:
    - devices: all
      mig-enabled: true
      mig-devices: {"3g.20gb": 2}
  mixed:
    - device-filter: ["0x20B010DE", "0x20B110DE"]
      devices: [0]
      mig-enabled: true
      mig-devices: {"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1}
  too-much:
    - devices: all
      mig-enabled: true
      mig-devices: {"3g.20gb": 3}
"""
CLASS = """
apiVersion: mig.dra.dev/v1alpha1
kind: MigNodeClass
migMode: switch
"""
PAIRS = [(0, "3g.20gb", 0, False), (0, "3g.20gb", 4, False)]


def label(rig: Rig, **labels: str | None) -> None:
    """Set labels of the Node: ``config`` is mig-manager's, others are ours."""
    keys = {"config": "nvidia.com/mig.config"}
    found = {keys.get(k, f"mig.dra.dev/{k.replace('_', '-')}"): v for k, v in labels.items()}
    rig.api.patch(NODES, rig.node, {"metadata": {"labels": found}})


def gpu_instances(rig: Rig) -> list[str]:
    """Calls that made or destroyed one."""
    return [c for c in rig.mutations() if "CreateGpuInstance" in c or "GpuInstanceDestroy" in c]


def status(rig: Rig) -> Obj:
    found: Obj = rig.mignode()["status"]
    return found


def wait_state(rig: Rig, state: str, *texts: str) -> str:
    """Wait for the state of the node's mode; its message, which has the texts."""

    def there() -> bool:
        assert rig.daemon is not None
        mode = status(rig).get("mode") or {}
        rig.daemon.loop.hurry()
        return mode.get("state") == state and all(t in mode.get("message", "") for t in texts)

    wait_for(f"state {state} {texts}", there)
    return str(status(rig)["mode"].get("message", ""))
