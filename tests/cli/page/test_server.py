"""The page's server: who is answered, what about, and with which headers."""

from __future__ import annotations

import gzip
import http.client
import re
from pathlib import Path

import pytest

from dra.common.resources import PODS
from tests.cli.conftest import Mig
from tests.cli.page.scenes import busy, end_pod, held, many_gpus, reference, say_waiting
from tests.cli.page.served import page_for, port_of, running_ui
from tests.cli.world import World
from tests.controller.helpers.objects import gpu
from tests.helpers.waiting import wait_for
from tests.sim.apiserver.running import running_server

STATIC = Path(__file__).parents[3] / "cli/page/static"
PATHS = ("/", "/page.css", "/page.js", "/data", "/why", "/nowhere")


def shown_owners(data: dict[str, object]) -> set[str]:
    return set(re.findall(r"'([^']*)', '[^']*'\]", str(data["nodes"])))


def test_the_page_is_served_with_a_strict_policy_to_whoever_asks(world: World) -> None:
    with page_for(world) as page:
        for path in PATHS:
            answer = page.ask(path, token="")
            policy = answer.headers["Content-Security-Policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; ")
            assert "unsafe" not in policy
            for part in ("frame-ancestors", "base-uri", "form-action"):
                assert f"{part} 'none'" in policy
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Referrer-Policy"] == "no-referrer"
            assert answer.headers["Cache-Control"] == "no-store"
            assert "Access-Control-Allow-Origin" not in answer.headers
            assert "Set-Cookie" not in answer.headers
        assert page.ask("/", token="").body == (STATIC / "page.html").read_bytes()
        assert page.ask("/nowhere").status == 404


def test_nothing_of_the_cluster_is_given_to_who_lacks_the_token(world: World) -> None:
    busy(world)
    with page_for(world) as page:
        for path in ("/data", "/why?pod=default/waits"):
            for token in (
                "",
                "wrong",
                "secre",
                "secret2",
                "s\u00e9cret".encode().decode("latin-1"),
            ):
                answer = page.ask(path, token=token)
                assert answer.status == 401, token
                assert b"default" not in answer.body
            assert page.ask(path, token="", Authorization="Basic c2VjcmV0").status == 401
        assert page.ask("/data?token=secret", token="").status == 401
        assert page.ask("/data").status == 200


FOREIGN = (
    *({"Host": host} for host in ("evil.example", "evil.example:80", "", "127.0.0.1.evil.example")),
    *({"Origin": origin} for origin in ("http://evil.example", "null")),
    *({"Origin": f"{name}:{{port}}"} for name in ("https://127.0.0.1", "http://localhost")),
    *({"Sec-Fetch-Site": site} for site in ("cross-site", "same-site")),
)


def test_another_page_is_refused_even_with_the_token(world: World) -> None:
    with page_for(world) as page:
        port = port_of(page)
        for headers in FOREIGN:
            connection = http.client.HTTPConnection("127.0.0.1", port)
            sent = {"Host": f"127.0.0.1:{port}", "Authorization": "Bearer secret"}
            sent |= {name: text.format(port=port) for name, text in headers.items()}
            connection.request("GET", "/data", headers=sent)
            assert connection.getresponse().status == 403, headers
            connection.close()
        own = f"http://127.0.0.1:{port}"
        assert page.ask("/data", Origin=own, Sec_Fetch_Site="same-origin").status == 200


def test_nothing_but_reading_is_served(world: World) -> None:
    with page_for(world) as page:
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH", "HEAD"):
            assert page.ask("/data", method=method).status == 501, method


def test_what_is_too_long_or_no_request_is_refused(world: World) -> None:
    with page_for(world) as page:
        assert page.ask("/data?since=" + "x" * 60_000).json["full"]
        assert page.ask("/data?since=" + "x" * 70_000).status == 414
        assert page.ask("/data?" + "&".join("a=b" for _ in range(20))).status == 400
        assert page.ask("/why?pod=").status == 404
        assert page.ask("/why?pod=default%2fnobody").status == 404
        assert page.ask("/why?pod=..%2f..%2fsecrets").status == 404


def test_what_changes_in_the_cluster_is_told(world: World) -> None:
    busy(world)
    with page_for(world) as page:
        first = page.loaded()
        assert {n["name"] for n in first["nodes"]} == {"node-a", "node-b"}
        assert shown_owners(first) >= {"trainer-0", "notebook", "big-0"}
        (waiting,) = first["waiting"]["items"]
        assert (waiting["name"], waiting["reason"]) == ("waits", "WaitingForSlices")
        assert [e["reason"] for e in first["told"]["items"]] == ["WaitingForSlices"]
        assert first["hidden"] == first["stale"] == []
        end_pod(world, "big-0", "big")
        world.replace_gpus("node-b", gpu(0, "node-b"))
        since = [first["version"]]

        def is_gone() -> bool:
            found = page.data(since=since[0])
            since[0] = found["version"]
            return any(n["gpus"][0]["slots"] == [] for n in found["nodes"] if n["name"] == "node-b")

        wait_for("the slice to be gone", is_gone)


def test_a_controller_that_is_gone_is_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.page.source._LEADER_SECONDS", 0.0)
    world.lead()
    with page_for(world) as page:
        wait_for("the leader", lambda: page.data()["leaderless"] is False)
        world.unlead()
        wait_for("its end", lambda: page.data()["leaderless"] is True)


def test_it_says_why_a_pod_waits_and_who_is_in_the_way(world: World) -> None:
    busy(world)
    with page_for(world) as page:
        page.loaded()
        found = page.ask("/why?pod=default/waits").json
    assert found["state"] == "Waiting"
    assert found["findings"][0]["reason"] == "NoRoom"
    assert "claim default/big of pod big-0" in found["findings"][0]["message"]
    assert found["wanted"] == ["1 x mig-7g.40gb"]
    assert found["blocked"] == [["node-b", "gpu-0", [0]], ["node-a", "gpu-0", [0, 1, 4]]]
    assert found["events"][0]["reason"] == "WaitingForSlices"


def test_of_ways_out_that_end_as_many_the_smallest_comes_first_and_a_silent_node_last(
    world: World,
) -> None:
    busy(world)
    whole = world.hold("whole", "node-0", "gpu-0-mig-7g40gb-0-0", pod_name="whole-0")
    world.add_node("node-0", gpu(0, "node-0", instances=(held("7g.40gb", 0, reference(whole)),)))

    def ways() -> list[str]:
        with page_for(world) as page:
            page.loaded()
            return [n for n, *_ in page.ask("/why?pod=default/waits").json["blocked"]]

    assert ways() == ["node-b", "node-0", "node-a"]
    world.fall_silent("node-b", minutes=10)
    assert ways() == ["node-0", "node-a", "node-b"]


def test_kubectl_mig_ui_serves_its_user_on_loopback_alone(world: World) -> None:
    busy(world)
    with running_ui(world.kubeconfig) as page:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/#token=[\w-]{32}", page.url)
        found = page.loaded()
        assert "trainer-0" in shown_owners(found)
        assert page.ask("/data", token="x").status == 401
        with running_ui(world.kubeconfig) as other:
            assert other.token != page.token
            assert other.ask("/data", token=page.token).status == 401


def test_a_port_that_is_taken_is_named(world: World, mig: Mig) -> None:
    with page_for(world) as page:
        ran = mig("ui", "--port", str(port_of(page)))
    assert ran.code == 2
    assert f"--port: cannot listen on {port_of(page)}: Address already in use" in ran.err


def test_what_is_large_is_compressed(world: World) -> None:
    for number in range(20):
        world.add_mignode(f"node-{number}", *many_gpus(f"node-{number}", 8))
    with page_for(world) as page:
        page.loaded()
        plain = page.ask("/data?since=0").body
        answer = page.ask("/data?since=0", Accept_Encoding="gzip, br")
        assert answer.headers["Content-Encoding"] == "gzip"
        assert gzip.decompress(answer.body) == plain
        assert len(answer.body) * 10 < len(plain)


def test_where_the_driver_is_not_installed_that_is_said(tmp_path: Path, mig: Mig) -> None:
    with running_server(tmp_path) as server:
        ran = mig("ui", "--kubeconfig", str(server.kubeconfig))
    assert ran.code == 4
    assert "is the driver installed? (kubectl mig doctor)" in ran.err


def test_hostile_texts_are_sent_as_texts_without_what_changes_others(world: World) -> None:
    bad = "<img src=x onerror=alert(1)>\x1b[2J\u202e</script>" + "A" * 3000
    busy(world)
    pod = world.api.get(PODS, "waits", namespace="default")
    say_waiting(world, pod, message=bad)
    world.tell(pod, "Bad", bad, source="mig.dra.dev")
    with page_for(world) as page:
        page.loaded()
        body = page.ask("/data").body + page.ask("/why?pod=default/waits").body
    assert b"onerror" in body
    assert b"\\u001b" not in body
    assert "\u202e".encode() not in body
    assert b"A" * 2001 not in body
