"""The registration dance, and ResourceSlices of drivers that are not there."""

from __future__ import annotations

from dra.common.resources import Obj
from dra.kube.client import KubeApi
from sim.kubelet.kubelet import Kubelet
from tests.helpers.waiting import wait_for
from tests.sim.kubelet.conftest import MakePlugin, bind
from tests.sim.kubelet.fakeplugin import FakePlugin
from tests.sim.standins import DRIVER, phase


def test_a_plugin_is_registered_under_the_first_version_of_its_list_that_kubelet_knows(
    api: KubeApi, kubelet: Kubelet, make_plugin: MakePlugin, claim: Obj
) -> None:
    plugin = make_plugin(versions=("v9.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAPlugin"))
    wait_for("registration", lambda: plugin.statuses == [(True, "")])
    bind(api, "a", claim)
    wait_for("running", lambda: phase(api, "a") == "Running")
    assert plugin.calls[0][:2] == ("prepare", "v1beta1")


def test_a_plugin_without_a_known_version_is_told_so(
    kubelet: Kubelet, make_plugin: MakePlugin
) -> None:
    plugin = make_plugin(versions=("v9.DRAPlugin",))
    wait_for("refusal", lambda: plugin.statuses)
    assert "no supported service in ['v9.DRAPlugin']" in plugin.statuses[0][1]


def test_a_plugin_is_gone_with_its_socket_and_back_with_a_new_one(
    kubelet: Kubelet, make_plugin: MakePlugin
) -> None:
    plugin = make_plugin()
    wait_for("the first word", lambda: plugin.statuses == [(True, "")])
    plugin.stop()
    wait_for("de-registration", lambda: kubelet.plugins.get(DRIVER) is None)
    plugin.start()
    wait_for("registration", lambda: kubelet.plugins.get(DRIVER))
    wait_for("the second word", lambda: plugin.statuses == [(True, ""), (True, "")])


def test_during_a_rolling_update_the_newest_plugin_is_called(
    api: KubeApi, plugin: FakePlugin, make_plugin: MakePlugin, claim: Obj
) -> None:
    newer = make_plugin(socket="dra-2.sock")
    wait_for("registration", lambda: newer.statuses == [(True, "")])
    bind(api, "a", claim)
    wait_for("running", lambda: phase(api, "a") == "Running")
    assert (len(plugin.calls), len(newer.calls)) == (0, 1)
