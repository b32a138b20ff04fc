"""Logs of simulated containers, asked of the API server as kubectl does."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

from dra.common.resources import Obj
from dra.kube.client import KubeApi
from sim.kubelet.kubelet import Kubelet
from tests.helpers.waiting import wait_for
from tests.sim.kubelet.conftest import bind
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


def test_a_log_of_a_container_that_has_not_started_says_so(
    api: KubeApi, kubelet: Kubelet, claim: Obj
) -> None:
    bind(api, "early", claim)  # no plugin is there: its claim cannot be prepared
    wait_for("a look at it", lambda: phase(api, "early") == "Pending")
    assert "is waiting to start: ContainerCreating" in _log(api, "early")
