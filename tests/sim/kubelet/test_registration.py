"""The registration dance, and ResourceSlices of drivers that are not there."""

from __future__ import annotations

from dra.common.resources import RESOURCE_SLICES, Obj
from dra.kube.client import KubeApi
from sim.kubelet.kubelet import Kubelet
from tests.helpers.waiting import wait_for
from tests.sim import standins
from tests.sim.kubelet.conftest import NODE, MakePlugin, bind
from tests.sim.kubelet.fakeplugin import FakePlugin
from tests.sim.standins import DRIVER, gone, holds_for, phase


def _publish(api: KubeApi, name: str, driver: str = DRIVER, node: str = NODE) -> None:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    body = {
        "metadata": {"name": name},
        "spec": {"driver": driver, "nodeName": node, "pool": pool, "devices": []},
    }
    api.create(RESOURCE_SLICES, body)


def test_a_plugin_is_registered_under_the_first_version_of_its_list_that_kubelet_knows(
    api: KubeApi, kubelet: Kubelet, make_plugin: MakePlugin, claim: Obj
) -> None:
    plugin = make_plugin(versions=("v9.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAPlugin"))
    wait_for("registration", lambda: plugin.statuses == [(True, "")])
    bind(api, "a", claim)
    wait_for("running", lambda: phase(api, "a") == "Running")
    assert plugin.calls[0][:2] == ("prepare", "v1beta1")


def test_a_plugin_of_another_type_is_told_so(kubelet: Kubelet, make_plugin: MakePlugin) -> None:
    plugin = make_plugin(kind="CSIPlugin")
    wait_for("refusal", lambda: plugin.statuses)
    assert plugin.statuses[0][0] is False
    assert "CSIPlugin" in plugin.statuses[0][1]
    assert kubelet.plugins.get(DRIVER) is None


def test_a_plugin_without_a_known_version_is_told_so(
    kubelet: Kubelet, make_plugin: MakePlugin
) -> None:
    plugin = make_plugin(versions=("v9.DRAPlugin",))
    wait_for("refusal", lambda: plugin.statuses)
    assert "no supported service in ['v9.DRAPlugin']" in plugin.statuses[0][1]


def test_a_plugin_that_refuses_its_status_is_registered_anew(
    kubelet: Kubelet, make_plugin: MakePlugin
) -> None:
    plugin = make_plugin(refuse_status=True)
    wait_for("a second try", lambda: len(plugin.statuses) >= 2)
    # It is registered while it is told so, as by kubelet, and no longer than that.
    wait_for("its end", lambda: kubelet.plugins.get(DRIVER) is None)
    plugin.refuse_status = False
    wait_for("registration", lambda: kubelet.plugins.get(DRIVER))


def test_a_plugin_is_gone_with_its_socket_and_back_with_a_new_one(
    kubelet: Kubelet, make_plugin: MakePlugin
) -> None:
    plugin = make_plugin()
    wait_for("the first word", lambda: plugin.statuses == [(True, "")])
    plugin.stop()
    wait_for("de-registration", lambda: kubelet.plugins.get(DRIVER) is None)
    plugin.start()
    wait_for("registration", lambda: kubelet.plugins.connected().get(DRIVER))
    wait_for("the second word", lambda: plugin.statuses == [(True, ""), (True, "")])


def test_during_a_rolling_update_the_newest_plugin_is_called(
    api: KubeApi, plugin: FakePlugin, make_plugin: MakePlugin, claim: Obj
) -> None:
    newer = make_plugin(socket="dra-2.sock")
    wait_for("registration", lambda: newer.statuses == [(True, "")])
    bind(api, "a", claim)
    wait_for("running", lambda: phase(api, "a") == "Running")
    assert (len(plugin.calls), len(newer.calls)) == (0, 1)


def test_kubelet_deletes_the_slices_of_its_node_when_it_starts(
    api: KubeApi, start_kubelet: object
) -> None:
    _publish(api, "mine")
    _publish(api, "foreign", node="node-2")
    start_kubelet()  # type: ignore[operator]
    wait_for("deletion", lambda: gone(lambda: api.get(RESOURCE_SLICES, "mine")))
    assert api.get(RESOURCE_SLICES, "foreign")


def test_slices_of_a_driver_that_left_are_deleted_after_a_while_and_those_of_others_stay(
    api: KubeApi, kubelet: Kubelet, make_plugin: MakePlugin
) -> None:
    plugin, other = make_plugin(), make_plugin(name="other.dev")
    wait_for("registration", lambda: len(kubelet.plugins.connected()) == 2)
    _publish(api, "mine")
    _publish(api, "others", driver="other.dev")
    assert other.statuses
    assert holds_for(0.6, lambda: not gone(lambda: api.get(RESOURCE_SLICES, "mine")))
    plugin.stop()
    wait_for("deletion", lambda: gone(lambda: api.get(RESOURCE_SLICES, "mine")))
    assert api.get(RESOURCE_SLICES, "others")
    _publish(api, "mine-again")
    assert holds_for(0.6, lambda: not gone(lambda: api.get(RESOURCE_SLICES, "mine-again")))
    standins.wipe(api)
