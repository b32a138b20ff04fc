"""Decisions of random worlds, recorded: played by the same rules they come out the same."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller import times
from controller.options import Options
from controller.queue import line
from controller.report.decision_file import DecisionFile
from controller.report.decisions import recording
from dra.cel.kinds import Kinds
from dra.cel.selectors import Selectors
from dra.replay import form
from dra.replay.play import Played, as_recorded, play
from dra.replay.setting import Setting
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import (
    first_available,
    gpu,
    instance,
    mignode,
    node,
    request,
)
from tests.controller.world.test_any_world import SEEDS
from tests.controller.world.world import World
from tests.controller.world.worldchecks import set_quotas
from tests.dra.kube.clocks import FakeClock
from tests.helpers.waiting import wait_for

KINDS = Kinds(Selectors())
END = form.encode(form.Ready()) + b"\n"


def record(seed: int, folder: Path, *, limit: int = 2**26, happenings: int = 300) -> list[bytes]:
    path = folder / f"{seed}.jsonl"
    file = DecisionFile(path, limit)
    world = World(seed, finalizer_at_creation=False, recording=file)
    for _ in range(happenings):
        world.act()
    file.close()
    return path.read_bytes().splitlines(keepends=True)


def places(played: Played) -> dict[int, tuple[str, frozenset[tuple[int, str]]]]:
    return {ask: (fate.node, fate.devices) for ask, fate in played.fates.items()}


@pytest.mark.parametrize("seed", range(14 * SEEDS))
def test_a_recording_is_played_as_it_was(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 2:
        monkeypatch.setattr(line, "OVERTAKEN", 1)  # slices are held back for most who wait
    recording = form.read(record(seed, tmp_path))
    played, was = play(recording, kinds=KINDS), as_recorded(recording, kinds=KINDS)
    assert played.differs_at is None
    assert places(played) == places(was)
    assert played.stranded == was.stranded
    placed = [e for e in recording.events if isinstance(e, form.Placed)]
    assert {p.ask: frozenset(p.devices) for p in placed} == {
        ask: devices for ask, (_, devices) in places(was).items() if devices
    }


def _without_one(lines: list[bytes], kind: bytes) -> Iterator[list[bytes]]:
    end = lines.index(END)
    for index, text in enumerate(lines):
        if index > end and text.startswith(b'{"e":"%s"' % kind):
            yield lines[:index] + lines[index + 1 :]


def _without_numbers(line: form.Placed) -> tuple[object, ...]:
    """A placement without its time and the numbers of claims, which each file counts anew."""
    return line.node, tuple(name for _, name in line.devices), line.passed


@pytest.mark.parametrize("kind", [b"ended", b"placed", b"node"])
def test_a_recording_that_lacks_a_line_is_played_otherwise(kind: bytes, tmp_path: Path) -> None:
    differing = 0
    for seed in (2, 4, 9):
        lines = record(seed, tmp_path)
        for fewer in _without_one(lines, kind):
            played = play(form.read(fewer), kinds=KINDS)
            differing += played.differs_at is not None
    assert differing > 2


def test_other_policies_and_gpus_decide_otherwise(tmp_path: Path) -> None:
    recording = form.read(record(9, tmp_path))
    was = as_recorded(recording, kinds=KINDS)
    spread = play(recording, Setting(policy="spread"), kinds=KINDS)
    assert spread.differs_at
    assert places(spread) != places(was)
    accepted = sum(f.placed is not None for f in was.fates.values())
    fewer = play(recording, Setting(gpus=1), kinds=KINDS)
    assert 0 < sum(f.placed is not None for f in fewer.fates.values()) < accepted
    more = play(recording, Setting(nodes=6), kinds=KINDS)
    assert sum(f.waits for f in more.fates.values()) < sum(f.waits for f in was.fates.values())
    assert any("-copy-" in f.node for f in more.fates.values())
    cut = play(recording, Setting(layout=(("7g.40gb", 1),)), kinds=KINDS)
    profiles = {name for f in cut.fates.values() for _, name in f.devices}
    assert profiles
    assert all("7g40gb" in name for name in profiles)


def test_nobody_is_named_in_a_recording(tmp_path: Path) -> None:
    path, bench = tmp_path / "log", Bench("node-a")
    options = Options(decision_log=path)
    with recording(bench.cluster, options, FakeClock()) as decisions:
        bench.world.reporter.decisions = decisions
        for name in ("secret-a", "secret-b"):
            bench.serve(name, name, request("secret-request", "mig-4g.20gb"))
    text = path.read_bytes()
    assert text.count(b'"e":"ask"') == 2
    assert text.count(b'"e":"placed"') == 1
    for secret in (b"secret", b"default/", b'"default"', b"uid-"):
        assert secret not in text


def test_each_file_of_a_full_recording_is_one_by_itself(tmp_path: Path) -> None:
    whole = record(9, tmp_path, happenings=1600)
    limit = sum(map(len, whole))
    last = record(9, tmp_path, limit=limit, happenings=1600)
    before = (tmp_path / "9.jsonl.1").read_bytes().splitlines(keepends=True)
    for lines in (before, last):
        assert sum(map(len, lines)) <= limit // 2
        recording = form.read(lines)
        assert not recording.header.dropped
        assert play(recording, kinds=KINDS).differs_at is None
    assert any(isinstance(e, form.Held) for e in form.read(last).state)
    at_last, known = (form.read(lines).events[-1] for lines in (last, whole))
    assert isinstance(at_last, form.Placed)
    assert isinstance(known, form.Placed)
    # What is recorded at one moment is told apart by microseconds.
    assert at_last.t == pytest.approx(known.t, abs=1_000, rel=0)
    assert _without_numbers(at_last) == _without_numbers(known)


def test_decisions_go_on_while_they_cannot_be_recorded(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "log"
    file = DecisionFile(path, 2**26)
    bench = Bench("node-a", recording=file)
    wait_for("the failure", lambda: not file.put(b"x"))
    bench.serve("p0", "c0", request("r", "mig-1g.5gb"))
    assert bench.devices("c0")
    path.parent.mkdir()
    bench.run(seconds=times.DECISION_LOG_AGAIN + 1)
    bench.serve("p1", "c1", request("r", "mig-2g.10gb"))
    file.close()
    assert bench.devices("c1")
    found = form.read(path.read_bytes().splitlines(keepends=True))
    assert found.header.dropped
    assert [e.devices[0][0] for e in found.state if isinstance(e, form.Held)] == (
        bench.devices("c0")
    )
    assert play(found, kinds=KINDS).differs_at is None


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


def recorded(path: Path, *nodes: str) -> tuple[Bench, DecisionFile]:
    file = DecisionFile(path, 2**26)
    return Bench(*nodes, recording=file), file


def test_a_busy_fleet_is_played_as_it_was(path: Path) -> None:
    draw = random.Random(1)
    bench, file = recorded(path, *(f"node-{n}" for n in range(6)))
    alive: list[str] = []
    for number in range(150):
        name, profile = f"p{number}", draw.choice(("1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb"))
        bench.serve(name, name, request("r", f"mig-{profile}"))
        alive.append(name)
        bench.run(seconds=draw.random())
        while len(alive) > 18:
            bench.delete_pod(alive.pop(draw.randrange(len(alive))))
    file.close()
    found = form.read(path.read_bytes().splitlines(keepends=True))
    assert sum(isinstance(e, form.Placed) for e in found.events) > 100
    assert play(found, kinds=KINDS).differs_at is None


def test_what_quotas_rule_out_is_played(path: Path) -> None:
    """One pod holds what it may when the file is begun, the next takes what is second best."""
    folder = path.parent / "missing"
    bench, file = recorded(folder / "log", "node-a")
    wait_for("the failure", lambda: not file.put(b"x"))
    set_quotas(bench, {"mig-1g.5gb": {"devices": 1}})
    either = first_available("r", ("small", "mig-1g.5gb", {}), ("large", "mig-2g.10gb", {}))
    bench.serve("p0", "c0", either)
    folder.mkdir()
    bench.run(seconds=times.DECISION_LOG_AGAIN + 1)
    bench.serve("p1", "c1", either)
    set_quotas(bench, {"mig-1g.5gb": {"devices": 2}})
    bench.serve("p2", "c2", either)
    bench.serve("p3", "c3", either)
    file.close()
    given = [bench.devices(f"c{n}")[0].split("-")[3] for n in range(4)]
    assert given == ["1g5gb", "2g10gb", "1g5gb", "2g10gb"]
    found = form.read((folder / "log").read_bytes().splitlines(keepends=True))
    assert [*map(type, found.state)].count(form.QuotaState) == 1
    assert len([e for e in found.events if isinstance(e, form.Placed)]) == 3
    assert play(found, kinds=KINDS).differs_at is None
    # On other nodes p2 and p3 are tried with what they may hold together.
    other = play(found, Setting(nodes=2), kinds=KINDS)
    profiles = [name.split("-")[3] for f in other.fates.values() for _, name in f.devices]
    assert profiles == ["2g10gb", "1g5gb", "2g10gb"]


def test_what_others_have_on_a_gpu_is_played(path: Path) -> None:
    bench, file = recorded(path)
    bench.cluster.set_node(node("node-a"))
    foreign = instance("3g.20gb", 4, state="foreign")
    bench.cluster.set_mignode(mignode("node-a", gpu(0, "node-a", instances=(foreign,))))
    bench.serve("p", "c", request("r", "mig-3g.20gb"))
    assert bench.devices("c") == ["gpu-0-mig-3g20gb-9-0"]
    file.close()
    found = form.read(path.read_bytes().splitlines(keepends=True))
    assert play(found, kinds=KINDS).differs_at is None
    [fate] = play(found, Setting(nodes=2), kinds=KINDS).fates.values()
    assert fate.placed is not None


def test_who_is_placed_later_ends_as_much_later(path: Path) -> None:
    bench, file = recorded(path, "node-a", "node-b")
    whole = request("r", "mig-7g.40gb")
    bench.serve("a", "a", whole)
    bench.run(seconds=10)
    bench.serve("b", "b", whole)
    bench.run(seconds=30)
    bench.delete_pod("a")
    bench.run()
    bench.run(seconds=20)
    bench.delete_pod("b")
    bench.run()
    bench.run(seconds=10)
    bench.serve("c", "c", whole)
    bench.run(seconds=60)
    bench.delete_pod("c")
    bench.run(seconds=5)
    file.close()
    found = form.read(path.read_bytes().splitlines(keepends=True))
    fates = [*play(found, Setting(gpus=1), kinds=KINDS).fates.values()]
    ended = [e.t for e in found.events if isinstance(e, form.Ended)]
    was = [e.t for e in found.events if isinstance(e, form.Placed)]
    assert [fate.placed for fate in fates] == [was[0], ended[0], ended[0] + ended[1] - was[1]]


def test_a_node_of_which_only_the_gpus_are_known_is_barred(path: Path) -> None:
    bench, file = recorded(path, "node-a")
    bench.cluster.set_mignode(mignode("node-b"))
    bench.serve("p0", "c0", request("r", "mig-1g.5gb"))
    bench.cluster.set_node(node("node-b"))
    bench.serve("p1", "c1", request("r", "mig-1g.5gb"))
    file.close()
    found = form.read(path.read_bytes().splitlines(keepends=True))
    asked = [e.barred for e in found.events if isinstance(e, form.Asked)]
    assert asked == [("node-b",), ()]
