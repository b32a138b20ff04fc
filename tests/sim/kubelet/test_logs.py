"""Logs of simulated containers, asked of the API server as kubectl does."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest

from dra.common.resources import PODS, Obj
from dra.kube.client import KubeApi
from sim.kubelet.containers import log_text
from sim.kubelet.kubelet import Kubelet
from tests.helpers.waiting import wait_for
from tests.sim import standins
from tests.sim.kubelet.conftest import NODE, bind
from tests.sim.kubelet.fakeplugin import FakePlugin
from tests.sim.standins import phase


def _log(api: KubeApi, pod: str, query: str = "") -> str:
    url = f"{api._http._connection.host}/api/v1/namespaces/default/pods/{pod}/log{query}"
    try:
        with urllib.request.urlopen(url) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as refused:
        body = json.loads(refused.read())
        return f"{refused.code} {body['message']}"


def test_a_log_says_that_nothing_runs_and_what_the_container_was_given(
    api: KubeApi, plugin: FakePlugin, claim: Obj
) -> None:
    bind(api, "a", claim)
    wait_for("a running", lambda: phase(api, "a") == "Running")
    first, *given = _log(api, "a").splitlines()
    assert first.startswith("simulated: no program runs here")
    assert "device /dev/nvidia0 195:0" in given
    assert "env    SLICE=one" in given


def test_a_log_counts_the_mounts_of_a_place_and_does_not_list_them() -> None:
    view: dict[str, Any] = {"command": [], "image": "app", "devices": [], "env": {}}
    files = ("/usr/lib64/a", "/usr/lib64/b", "/usr/bin/c")
    view |= {"cdiDevices": [], "mounts": [{"containerPath": file} for file in files]}
    assert log_text(view).splitlines()[1:] == [
        "mounts 1 below /usr/bin",
        "mounts 2 below /usr/lib64",
    ]


def test_a_log_is_refused_in_the_words_of_an_api_server(api: KubeApi, kubelet: Kubelet) -> None:
    two = standins.pod("two", node=NODE)
    two["spec"]["containers"] = [{"name": n, "image": "app"} for n in ("x", "y")]
    api.create(PODS, two)
    api.create(PODS, standins.pod("unbound"))
    assert _log(api, "unbound") == ""
    assert "choose one of: [x y]" in _log(api, "two")
    assert _log(api, "two", "?container=z") == "400 container z is not valid for pod two"
    assert _log(api, "nobody") == '404 pods "nobody" not found'


def test_a_log_of_a_container_that_has_not_started_says_so(
    api: KubeApi, kubelet: Kubelet, claim: Obj
) -> None:
    bind(api, "early", claim)  # no plugin is there: its claim cannot be prepared
    wait_for("a look at it", lambda: phase(api, "early") == "Pending")
    assert "is waiting to start: ContainerCreating" in _log(api, "early")


@pytest.mark.parametrize("method", ["PUT", "DELETE", "POST"])
def test_a_log_cannot_be_written(api: KubeApi, method: str) -> None:
    api.create(PODS, standins.pod("a"))
    url = f"{api._http._connection.host}/api/v1/namespaces/default/pods/a/log"
    with pytest.raises(urllib.error.HTTPError, match="405"):
        urllib.request.urlopen(urllib.request.Request(url, data=b"{}", method=method))
