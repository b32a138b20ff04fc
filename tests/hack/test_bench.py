"""The benchmarks run; what they measure is for people to read."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from controller.cluster.cluster import Cluster
from dra.allocator.moves import MoveTable
from dra.cel.kinds import Kinds
from dra.cel.selectors import Selectors
from dra.common.resources import MIG_NODES, NODES, PODS, RESOURCE_CLAIMS
from dra.gpu.names import DEFAULT_DRIVER
from hack.bench import allocate, cluster, memory, objects, openb, placement
from hack.bench.memory import FullCluster
from hack.bench.objects import geometry
from hack.bench.placement import NAMES
from hack.bench.site import Effort, partitionable, read_attempts, read_writes

TABLE = MoveTable(geometry("A100-SXM4-80GB"))


TRACE = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
a,1,1,1,460,,LS,Running,0,50,0
b,1,1,2,1000,,LS,Running,10,60,10
c,1,1,0,0,,LS,Running,10,60,10
d,1,1,1,110,,LS,Pending,20,60,
"""


@pytest.mark.parametrize("scenario", [*placement.SCENARIOS, *placement.OF_TRACE])
def test_every_policy_has_a_row_in_every_placement_table(scenario: str, tmp_path: Path) -> None:
    arguments = ["--replications", "1", "--gpus", "4", "--scenario", scenario]
    if scenario in placement.OF_TRACE:
        (tmp_path / "trace.csv").write_text(TRACE)
        arguments += ["--trace", str(tmp_path / "trace.csv")]
    result = CliRunner().invoke(placement.main, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    rows = [line.split()[0] for line in result.output.splitlines() if line.startswith(NAMES)]
    assert rows == list(NAMES)


def test_parts_of_gpus_are_rounded_up_to_profiles(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(TRACE)
    jobs = openb.read(tmp_path / "trace.csv", TABLE.geometry)
    assert [(j.profile, j.count, j.lasts) for j in jobs] == [
        ("4g.40gb", 1, 50.0),
        ("7g.80gb", 2, 50.0),
        ("1g.10gb", 1, 40.0),
    ]
    assert openb.peak(jobs, TABLE.geometry) == 0.5 + 2 + 0.125


def test_decisions_are_timed_per_size_of_the_cluster() -> None:
    arguments = ["--nodes", "1", "--nodes", "2", "--decisions", "20"]
    result = CliRunner().invoke(allocate.main, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    rows = [line.split() for line in result.output.splitlines()[1:]]
    kinds = ["slice", "together", "apart", "either", "by-size", "refused"]
    assert [(row[0], row[3]) for row in rows] == [(n, kind) for n in "12" for kind in kinds]
    assert all(int(row[1]) > 0 for row in rows)
    placed = {row[3]: row[4] for row in rows[len(kinds) :]}
    assert placed["refused"] == "0%"
    assert placed["slice"] == placed["by-size"] == placed["either"] == "100%"


def test_the_memory_of_the_controller_is_measured_in_a_process_of_its_own() -> None:
    arguments = ["--nodes", "2", "--claims", "80", "--settle", "0"]
    result = CliRunner().invoke(memory.main, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    first, _, *rows = result.output.splitlines()
    assert first.startswith("2 nodes, 80 claims, ready after")
    assert [row.split()[0] for row in rows] == ["mirrored", "changed"]
    assert all(0 < int(row.split()[1]) <= int(row.split()[2]) for row in rows)


def test_a_full_cluster_is_one_that_the_controller_understands() -> None:
    full = FullCluster(TABLE.geometry, nodes=2, claims=80)
    known = Cluster(DEFAULT_DRIVER, objects.FINALIZER, Kinds(Selectors()))
    for node in range(2):
        known.set_node(full.body(NODES, node))
        known.set_mignode(full.body(MIG_NODES, node))
    for number in range(80):
        known.set_claim(full.body(RESOURCE_CLAIMS, number))
        known.set_pod(full.body(PODS, number))
    states = [state for node in known.fleet.nodes.values() for state in node.gpus]
    assert [len(state.holdings) for state in states] == [5] * 16, "claims have their instances"
    assert all(h.claim_uid for state in states for h in state.holdings)
    assert all(pod.claim_keys[0] in known.claims for pod in known.pods.values())


def test_without_a_control_planes_binaries_the_benchmark_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    result = CliRunner().invoke(cluster.main, [], catch_exceptions=False)
    assert result.exit_code == 0
    assert result.output.startswith("skipped: no etcd, kube-apiserver")
    assert "KUBEBUILDER_ASSETS" in result.output


def test_the_slices_of_the_cluster_benchmark_are_within_the_limits() -> None:
    slices = partitionable(objects.inventory("node", TABLE.geometry))
    counters, *rest = (s["spec"] for s in slices)
    assert len(counters["sharedCounters"]) <= 8
    assert all(0 < len(s["devices"]) <= 64 for s in rest)
    assert {s["pool"]["resourceSliceCount"] for s in (counters, *rest)} == {len(slices)}


METRICS = """\
# TYPE apiserver_request_total counter
apiserver_request_total{code="201",resource="pods",subresource="",verb="POST",version="v1"} 3
apiserver_request_total{code="201",resource="pods",subresource="binding",verb="POST"} 3
apiserver_request_total{code="200",resource="pods",subresource="status",verb="PATCH"} 2
apiserver_request_total{code="409",resource="pods",subresource="status",verb="PATCH"} 1
apiserver_request_total{code="200",resource="events",subresource="",verb="GET"} 9
scheduler_schedule_attempts_total{profile="default-scheduler",result="scheduled"} 3
scheduler_schedule_attempts_total{profile="other",result="scheduled"} 1
scheduler_schedule_attempts_total{profile="other",result="unschedulable"} 1.5e+1
scheduler_schedule_attempts_seconds{result="scheduled"} 7
"""


def test_the_effort_is_what_others_were_made_to_do() -> None:
    writes, attempts = read_writes(METRICS), read_attempts(METRICS)
    assert writes == {"patch pods/status": 3.0}
    assert attempts == {"scheduled": 4.0, "unschedulable": 15.0}
    before, after = Effort({"a": 1.0}, writes), Effort({"a": 3.0, "b": 2.0}, writes, attempts)
    assert after - before == Effort({"a": 2.0, "b": 2.0}, {"patch pods/status": 0.0}, attempts)
