"""The benchmarks run; what they measure is for people to read."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from dra.allocator.moves import MoveTable
from hack.bench import allocate, cluster, objects, openb, placement
from hack.bench.objects import geometry
from hack.bench.placement import NAMES
from hack.bench.play import Ask, Site, play
from hack.bench.site import partitionable

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


def test_who_finds_no_room_waits_for_it_or_is_lost() -> None:
    asks = [Ask(1.0, "7g.80gb", 8.0), Ask(2.0, "4g.40gb", None), Ask(3.0, "1g.10gb", 1.0)]
    asks.append(Ask(20.0, "7g.80gb", None))
    for queues, placed in ((True, [1.0, 9.0, 9.0, None]), (False, [1.0, None, None, 20.0])):
        played = play(asks, Site(TABLE.geometry, gpus=1, per_node=1, queues=queues))
        assert [fate.placed for fate in played.fates] == placed


def test_decisions_are_timed_per_size_of_the_cluster() -> None:
    arguments = ["--nodes", "1", "--nodes", "2", "--decisions", "20"]
    result = CliRunner().invoke(allocate.main, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    rows = [line.split() for line in result.output.splitlines()[1:]]
    kinds = ["slice", "together", "apart", "either", "by-size", "refused", "moves", "ends"]
    assert [(row[0], row[3]) for row in rows] == [(n, kind) for n in "12" for kind in kinds]
    assert all(int(row[1]) > 0 for row in rows)
    placed = {row[3]: row[4] for row in rows[len(kinds) :]}
    assert placed["refused"] == "0%"
    assert placed["slice"] == placed["by-size"] == placed["either"] == "100%"


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
