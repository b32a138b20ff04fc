"""``kubectl mig replay``: recorded decisions beside what they would have come to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from controller.report.decision_file import DecisionFile
from dra.common.resources import PODS, RESOURCE_CLAIM_TEMPLATES, Obj, at
from sim.cluster.cluster import CONTROLLER, Cluster, ClusterShape, running_cluster
from sim.processes import Process, Supervisor
from tests.cli.conftest import Mig
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import gpu, mignode, node, request
from tests.helpers.waiting import wait_for

SERVED = (("small", "1g.5gb"), ("half", "3g.20gb"), ("other", "1g.5gb"), ("full", "7g.40gb"))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A controller of two GPUs, of which two small pods would use both by another policy."""
    path = tmp_path / "decisions.jsonl"
    file = DecisionFile(path, 2**26)
    bench = Bench(recording=file)
    for name in ("node-a", "node-b"):
        bench.cluster.set_node(node(name))
        bench.cluster.set_mignode(mignode(name, gpu(0, name)))
    for name, profile in SERVED:
        bench.serve(name, name, request("r", f"mig-{profile}"))
        bench.run(seconds=10)
    bench.serve("late", "late", request("r", "mig-7g.40gb"))
    bench.run(seconds=30)
    bench.delete_pod("full")
    bench.run(seconds=5)
    assert bench.devices("late")
    file.close()
    return path


def test_the_same_policy_comes_to_the_same(log: Path, mig: Mig) -> None:
    ran = mig("replay", str(log))
    assert (
        ran.out
        == """\
5 pods asked on 2 nodes in 1 min from 2026-01-01T00:00:00Z on

                          RECORDED   REPLAYED
accepted                  5          5
waited                    1          1
  on the mean             35.0 s     35.0 s
  19 of 20 at most        35.0 s     35.0 s
stranded memory slices    0.56       0.56
cost of a pod to others   0.338      0.338

each decision is as it was recorded
"""
    )
    assert ran.code == 0


def test_another_policy_is_told_from_what_was(log: Path, mig: Mig) -> None:
    ran = mig("replay", str(log), "--policy", "spread")
    assert ran.out.splitlines()[3:5] == [
        "accepted                  5          3",
        "waited                    1          2",
    ]
    assert ran.out.splitlines()[10:] == [
        "from 0.0 s on: 2 pods fared differently, 3 were placed elsewhere",
        "  POD            RECORDED              REPLAYED",
        "  default/full   placed at once        waits after 45.0 s",
        "  default/late   placed after 35.0 s   waits after 35.0 s",
    ]
    found = mig("replay", str(log), "--policy", "spread", "-o", "json").json
    assert found["replayed"]["accepted"] == 3
    assert [d["pod"] for d in found["differences"]] == ["default/full", "default/late"]


def test_more_and_fewer_gpus_are_told(log: Path, mig: Mig) -> None:
    more = mig("replay", str(log), "--gpus", "3", "-o", "json").json
    assert (more["replayed"]["accepted"], more["replayed"]["waited"]) == (5, 0)
    fewer = mig("replay", str(log), "--nodes", "1", "-o", "json").json
    assert fewer["replayed"]["accepted"] == 3
    cut = mig("replay", str(log), "--layout", "7g.40gb", "-o", "json").json
    assert cut["replayed"]["accepted"] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "best"], "--policy: 'best' is none; allowed are: sws, best-fit"),
        (["--gpus", "2", "--nodes", "1"], "--gpus and --nodes: give one of them"),
        (["--layout", "3g.20gb=x"], "--layout: '3g.20gb=x' is no slice: write profiles"),
        (["--layout", "9g.1gb"], "it has no profile 9g.1gb; it has: 1g.5gb"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    arguments: list[str], message: str, log: Path, mig: Mig
) -> None:
    ran = mig("replay", str(log), *arguments)
    assert ran.code == 2
    assert message in ran.err


def test_a_damaged_file_is_refused_by_its_line_and_a_cut_one_is_read(log: Path, mig: Mig) -> None:
    lines = log.read_bytes().splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines, start=1) if b'"mignode"' in line)
    for number, bad, message in (
        (1, b"{}\n", "line 1: "),
        (3, b'{"e":"nothing"}\n', "line 3: Invalid value 'nothing'"),
        (9, b'{"e":"ended","t":1,"claim":77}\n', "line 9: claim 77 is not known before it"),
        (2, b'{"e":"geometry","number":0}\n', "kubectl mig of the release that wrote it"),
        (at, _uncountable(lines[at - 1]), f"line {at}: a GPU of one of its geometries may get"),
        (1, lines[0].replace(b'"version":1', b'"version":2'), "line 1: version 2 is not read here"),
    ):
        log.write_bytes(b"".join([*lines[: number - 1], bad, *lines[number:]]))
        ran = mig("replay", str(log))
        assert (ran.code, message in ran.err) == (2, True), ran.err
    log.write_bytes(b"".join(lines)[:-9])
    ran = mig("replay", str(log))
    assert ran.code == 0
    assert "its last line is cut off, and left out" in ran.out
    missing = mig("replay", str(log.parent / "none"))
    assert missing.code == 2
    assert "cannot be read: No such file" in missing.err


def _uncountable(line: bytes) -> bytes:
    """The line of a node, with GPUs that can be cut in more ways than any."""
    read = json.loads(line)
    profiles = read["mignode"]["status"]["geometries"][0]["profiles"]
    profiles[0]["starts"], profiles[-1]["computeSlices"] = [*range(12)], 12
    return json.dumps(read).encode() + b"\n"


def test_what_a_file_says_does_nothing_to_a_terminal(log: Path, mig: Mig) -> None:
    log.write_bytes(
        log.read_bytes().replace(b"default/full", b"\\u001b[31m\\u001b]0;x\\u0007\\nfull")
    )
    ran = mig("replay", str(log), "--policy", "spread")
    assert ran.code == 0
    assert "\x1b" not in ran.out
    assert "\ufffd[31m\ufffd]0;x\ufffd full" in ran.out


def test_what_two_leaders_wrote_is_played_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mig: Mig
) -> None:
    """Of a simulated cluster's processes; the first leader is killed."""
    files = {name: tmp_path / f"{name}.jsonl" for name in (CONTROLLER, "successor")}
    spawn = Supervisor.spawn

    def recording(self: Supervisor, name: str, arguments: Sequence[str], **more: Any) -> Process:
        if name in files:
            more_arguments = ["--decision-log", str(files[name]), "--decision-log-names"]
            arguments = [*arguments, "--identity", name, *more_arguments]
        return spawn(self, name, arguments, **more)

    monkeypatch.setattr(Supervisor, "spawn", recording)
    with running_cluster(ClusterShape(nodes=1, gpus=("A100-SXM4-40GB",))) as cluster:
        first = cluster.supervisor.children[CONTROLLER]
        for profile in ("1g.5gb", "3g.20gb", "7g.40gb"):
            cluster.api.create(RESOURCE_CLAIM_TEMPLATES, template(profile))
        served(cluster, "small", "1g.5gb")
        served(cluster, "half", "3g.20gb")
        written = files[CONTROLLER].read_bytes
        wait_for("its lines", lambda: written().count(b'{"e":"placed"') == 2)  # a file is buffered
        first.kill()
        arguments = first.argv[1 : first.argv.index("--identity")]
        successor = cluster.supervisor.spawn("successor", arguments)
        served(cluster, "again", "1g.5gb")
        for name in ("small", "half", "again"):
            cluster.api.delete(PODS, name, namespace="default")
        served(cluster, "full", "7g.40gb")
        successor.stop()
    for name, pods in ((CONTROLLER, 2), ("successor", 2)):
        ran = mig("replay", str(files[name]))
        assert ran.out.startswith(f"{pods} pods asked on 1 node in ")
        assert ran.out.endswith("\n\neach decision is as it was recorded\n")
        other = mig("replay", str(files[name]), "--policy", "spread", "-o", "json").json
        assert (other["pods"], other["replayed"]["accepted"]) == (pods, pods)
    placed = mig("replay", str(files["successor"]), "--layout", "7g.40gb", "-o", "json").json
    assert [d["pod"] for d in placed["differences"]] == ["default/again"]


def template(profile: str) -> Obj:
    exactly = {"deviceClassName": f"mig-{profile}"}
    devices = {"requests": [{"name": "r", "exactly": exactly}]}
    metadata = {"name": profile.replace(".", "-"), "namespace": "default"}
    return {"metadata": metadata, "spec": {"spec": {"devices": devices}}}


def served(cluster: Cluster, name: str, profile: str) -> None:
    """A pod that runs with a slice of its own."""
    claims = [{"name": "gpu", "resourceClaimTemplateName": profile.replace(".", "-")}]
    container = {"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}
    spec = {"resourceClaims": claims, "containers": [container], "terminationGracePeriodSeconds": 1}
    cluster.api.create(PODS, {"metadata": {"name": name, "namespace": "default"}, "spec": spec})

    def runs() -> bool:
        found = cluster.api.get(PODS, name, namespace="default")
        return bool(at(found, "status", "phase", default="") == "Running")

    wait_for(f"pod {name}", runs)
