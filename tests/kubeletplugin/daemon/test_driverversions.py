"""A driver that was exchanged under the plugin is told with both versions."""

from __future__ import annotations

from sim.nvml.faults import Fault
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.helpers.rig import Rig


def test_a_version_mismatch_names_both_versions_and_passes(rig: Rig) -> None:
    library = rig.machine.host_root / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.999.1.2"
    library.write_text("")
    version = rig.machine.state().driver_version
    rig.driver_root = rig.machine.host_root
    rig.restart()
    rig.machine.inject(Fault(id="old", function="*", action="return", code=18, times=0))
    rig.stop()
    rig.start(ready=False)

    def message() -> str:
        return str(rig.mignode()["status"]["conditions"][0].get("message", ""))

    wait_for("MigNode", lambda: "LIB_RM_VERSION_MISMATCH" in message())
    assert f"kernel module {version}" in message()
    assert "999.1.2" in message()
    rig.machine.clear_faults()
    wait_for("the GPUs", lambda: message() == "")
