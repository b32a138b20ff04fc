"""MIG mode: whose it is to change, when it is tried, and who is named while it cannot be."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kubeletplugin import times
from sim.nvml.machine import GpuSpec
from sim.nvml.products import Variants
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.gpus.lifecycle.test_managers import advertise, with_options
from tests.kubeletplugin.helpers.reported import events, reasons
from tests.kubeletplugin.helpers.rig import A100, Rig

H100 = "H100-80GB-HBM3"


def mode_changes(rig: Rig) -> int:
    return rig.mutations().count("nvmlDeviceSetMigMode")


def test_mig_mode_is_left_alone_unless_asked_for(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(GpuSpec(H100), GpuSpec(A100))
    for gpu in (0, 1):
        rig.machine.set_mig_mode(gpu, enabled=False)
    rig.start()
    assert reasons(rig) == ["MIGDisabled", "MIGDisabled"]
    assert mode_changes(rig) == 0


@pytest.mark.usefixtures("frequent_looks")
def test_mig_mode_is_turned_on_where_that_needs_no_reset(
    make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_options(monkeypatch, enable_mig=True)
    rig = make_rig(GpuSpec(H100), GpuSpec(A100))
    for gpu in (0, 1):
        rig.machine.set_mig_mode(gpu, enabled=False)
    rig.start()
    # A GPU that somebody looks at in that moment is left for the next look.
    wait_for("only the H100", lambda: reasons(rig) == ["", "MIGDisabled"])
    assert mode_changes(rig) == 1
    wait_for("the event", lambda: "MIGModeEnabled" in dict(events(rig, rig.node)))
    rig.prepared(rig.claim("gpu-0-mig-1g10gb-19-0"))
    # A reboot turns it off from Hopper on.
    rig.stop()
    rig.machine.reboot()
    rig.start()
    wait_for("MIG mode", lambda: reasons(rig)[0] == "")
    wait_for("the slice", lambda: [s[3] for s in rig.published_slices()] == ["lost"])


@pytest.mark.usefixtures("frequent_looks")
def test_mig_mode_is_left_alone_while_a_device_plugin_has_the_node(
    make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_options(monkeypatch, enable_mig=True)
    rig = make_rig(GpuSpec(H100))
    rig.machine.set_mig_mode(0, enabled=False)
    advertise(rig, "1")
    rig.start()
    assert reasons(rig) == ["DevicePluginActive"]
    assert mode_changes(rig) == 0
    advertise(rig, "0")
    wait_for("the mode", lambda: reasons(rig) == [""])


@pytest.mark.usefixtures("frequent_looks")
def test_mig_mode_of_a_gpu_in_use_is_not_changed(
    make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_options(monkeypatch, enable_mig=True)
    rig = make_rig(GpuSpec(H100))
    rig.machine.set_mig_mode(0, enabled=False)
    rig.machine.start_process(0, 11)
    rig.start()
    assert reasons(rig) == ["MIGDisabled"]
    assert mode_changes(rig) == 0
    rig.machine.end_process(11)
    wait_for("the mode", lambda: reasons(rig) == [""])


def test_an_exclusive_compute_mode_is_left_alone_and_its_remedy_told(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig(GpuSpec(A100, mig=False))
    rig.machine.disturb(0, compute_mode=3)
    rig.start()
    assert reasons(rig) == ["ComputeModeRestricted"]
    assert "cannot be used: its compute mode is ExclusiveProcess" in rig.refused(rig.claim("gpu-0"))
    assert rig.mutations() == []
    assert f"nvidia-smi -i {rig.machine.gpu(0).uuid} -c 0" in str(rig.mignode())


HELD = [Variants(), Variants(mode_held="refused")]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of MIG mode is tried again after a tenth of a second."""
    monkeypatch.setattr(times, "MODE_FIRST_SECONDS", 0.1)


@pytest.mark.parametrize(("variants", "restarted"), [(HELD[0], True), (HELD[1], False)])
@pytest.mark.usefixtures("frequent_looks", "impatient")
def test_mig_mode_is_tried_again_until_no_monitor_has_the_gpu_open(
    make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch, *, restarted: bool
) -> None:
    with_options(monkeypatch, enable_mig=True)
    rig = make_rig(GpuSpec(H100))
    rig.machine.set_mig_mode(0, enabled=False)
    rig.machine.start_monitor(0, 4711)
    rig.start()

    def told() -> str:
        return dict(events(rig, rig.node)).get("MIGModePending", "")

    wait_for("its holder", lambda: "open in dcgm-exporter (4711); DCGM releases it" in told())
    if restarted:
        rig.stop()
    rig.machine.end_monitor(4711)
    if restarted:
        rig.start(ready=False)
    wait_for("the mode", lambda: reasons(rig) == [""])
    rig.prepared(rig.claim("gpu-0-mig-1g10gb-19-0"))
