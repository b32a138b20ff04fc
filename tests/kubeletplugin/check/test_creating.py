"""The half of the check that makes slices: what it finds out and refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

import msgspec
import pytest
from msgspec.structs import replace

from dra.gpu.geometry import Placement
from dra.gpu.inventory import ClaimRef
from kubeletplugin.check.report import Item, Report
from kubeletplugin.journal.entries import Entry, State
from kubeletplugin.journal.journal import Journal
from kubeletplugin.nvml import errors
from kubeletplugin.ownership import owned_at_once
from sim.nvml.products import Variants
from tests.helpers.waiting import PATIENCE, wait_for
from tests.kubeletplugin.check.conftest import (
    A100,
    CREATE,
    H100,
    MakeNode,
    Node,
    assert_clean,
    refused,
    state_of,
)
from tests.kubeletplugin.helpers.releasing import drain, resume, wait_released
from tests.kubeletplugin.helpers.reported import reasons
from tests.kubeletplugin.helpers.rig import Rig


@pytest.mark.every_variant
def test_whatever_the_driver_does_nothing_is_left(make_node: MakeNode, variants: Variants) -> None:
    # A check ends at what it cannot remove, as the next test says, and makes no device nodes.
    node = make_node(H100, variants=replace(variants, gsp_keeps=0, host_nodes="made"))
    trials = node.check(*CREATE).report.trials
    assert len([t for t in trials if not t.refused]) > len(trials) / 2
    assert_clean(node)


def test_it_ends_where_a_removal_fails_and_says_so(make_node: MakeNode) -> None:
    node = make_node(A100, variants=Variants(gsp_keeps=1))
    result = node.run(*CREATE)
    assert result.exit_code == 1
    assert "nvmlGpuInstanceDestroy" in result.output
    assert "UNKNOWN (999)" in result.output


def test_a_slice_with_less_than_advertised_is_told(make_node: MakeNode) -> None:
    node = make_node(A100)
    file = node.machine.directory / "products" / f"{A100}.json"
    data = json.loads(file.read_text())
    for profile in data["gi_profiles"]:
        if profile["name"] == "3g.20gb":
            profile["multiprocessors"] += 10
    file.write_text(json.dumps(data))
    report = node.check(*CREATE).report
    refused = {t.profile: t.refused for t in report.trials if t.refused}
    assert list(refused) == ["3g.20gb"]
    assert "advertises 52 multiprocessors" in refused["3g.20gb"]


def test_a_person_is_asked_and_may_say_no(make_node: MakeNode) -> None:
    node = make_node(A100)
    assert "There is no terminal to ask" in refused(node, "--create", "0")
    with pytest.MonkeyPatch.context() as patch:
        from kubeletplugin.check import command

        patch.setattr(command, "_ask", lambda question, *, yes: False)
        assert "nothing was done" in refused(node, "--create", "0")
    assert_clean(node)


@pytest.mark.parametrize(("typed", "code"), [("y\n", 0), ("n\n", 1)])
def test_the_question_stands_on_the_terminal(make_node: MakeNode, typed: str, code: int) -> None:
    node = make_node(A100)
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "sim", "check", "--hardware", str(node.machine.directory)]
    with subprocess.Popen(
        [*command, "--", "--create", "0"],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        os.close(theirs)
        os.write(ours, typed.encode())
        said, _ = process.communicate(timeout=PATIENCE)
    os.close(ours)
    assert "Make and remove one slice of each of its 7 profiles, 2 times?" in said
    assert process.returncode == code, said
    assert bool(node.machine.mutations()) is (code == 0)
    assert_clean(node)


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (lambda n: n.machine.create_slice(0, "1g.5gb"), "has GPU instances ("),
        (lambda n: n.machine.set_mig_mode(0, enabled=False), "is not in MIG mode"),
        (lambda n: n.machine.start_process(0, 4711), "is used by 1 processes"),
        (lambda n: n.machine.lose(0), "no such GPU"),
    ],
    ids=["instances", "no MIG", "processes", "lost"],
)
def test_a_gpu_that_is_not_idle_is_refused(
    make_node: MakeNode, prepare: Callable[[Node], None], words: str
) -> None:
    node = make_node(A100)
    prepare(node)
    assert words in refused(node, *CREATE)


def test_a_gpu_with_claims_in_the_journal_is_refused(make_node: MakeNode) -> None:
    node = make_node(A100)
    gpu = node.machine.gpu(0).uuid
    claim = ClaimRef("team", "train", "uid-1")
    entry = Entry(
        claim, "gpu-0-mig-1g5gb-19-0", State.PREPARED, gpu, "boot", placement=Placement(0, 1)
    )
    Journal(state_of(node) / "journal.json").put(entry)
    assert "team/train" in refused(node, *CREATE)


def test_a_gpu_may_be_called_as_the_plugin_calls_it(make_node: MakeNode) -> None:
    node = make_node(A100, H100)
    names = {"version": 1, "gpus": {node.machine.gpu(1).uuid: 7}}
    state_of(node).mkdir(parents=True)
    (state_of(node) / "gpus.json").write_text(json.dumps(names))
    report = node.check("--create", "gpu-7", "--yes").report
    assert {t.profile for t in report.trials} >= {"1g.10gb", "3g.40gb"}
    assert "it has: GPU-" in refused(node, "--create", "gpu-1", "--yes")


HOLDER = """
import sys, pynvml
from sim.nvml import install
install(sys.argv[1])
pynvml.nvmlInit()
print("holds", flush=True)
sys.stdin.read()
"""


def test_a_plugin_that_holds_the_gpus_is_not_overtaken_and_one_that_lets_go_is_no_obstacle(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make_node(A100)
    monkeypatch.setenv("NODE_NAME", "worker-7")
    monkeypatch.setattr(errors, "_node", "")  # put back afterwards
    registry = state_of(node).parents[1] / "plugins_registry"
    with owned_at_once(registry, "a plugin") as owner:
        assert not owner
        command = [sys.executable, "-c", HOLDER, str(node.machine.directory)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as plugin:
            assert plugin.stdout is not None
            assert plugin.stdout.readline() == "holds\n"
            assert "kubectl mig drain worker-7 a" in refused(node, *CREATE)
            plugin.kill()
        assert node.check(*CREATE).report.trials


# -- the check beside a plugin that serves: it makes slices only while no GPU is open in that


SLICE = "gpu-0-mig-1g5gb-19-4"


def check(rig: Rig, *arguments: str) -> tuple[int, str, Report | None]:
    """Exit code, what was said on the terminal, and the report if there is one."""
    file = rig.folder / "report.json"
    file.unlink(missing_ok=True)
    places = (
        *("--hardware", str(rig.machine.directory), "--kubelet-root", str(rig.roots.kubelet)),
        *("--cdi-root", str(rig.roots.cdi), "--state-dir", str(rig.roots.state)),
    )
    command = [sys.executable, "-m", "sim", "check", *places, "--", "--json", str(file)]
    done = subprocess.run(
        [*command, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
        env=os.environ | {"KUBECONFIG": str(rig.kubeconfig)},
    )
    data = file.read_bytes() if file.exists() else b""
    report = msgspec.json.decode(data, type=Report) if data else None
    return done.returncode, done.stdout + done.stderr, report


def test_a_node_that_serves_is_whole_and_nothing_of_it_is_changed(rig: Rig) -> None:
    assert rig.prepared(rig.claim(SLICE))
    before = rig.machine.snapshot()
    code, said, report = check(rig)
    assert code == 0, said
    assert report is not None
    assert rig.machine.snapshot() == before
    assert [len(gpu.instances) for gpu in report.gpus] == [1, 0]
    assert any("k8s.mig.dra.dev-claim" in fact for fact in report.facts[Item.CDI])


def test_slices_are_made_beside_a_plugin_only_while_it_lets_go_of_all_gpus(rig: Rig) -> None:
    # As the program does; the rig starts what comes after that.
    with owned_at_once(rig.roots.registry, "a/b of driver mig.dra.dev") as owner:
        assert not owner
        before = rig.machine.mutations()
        code, said, _ = check(rig, "--create", "1", "--yes")
        assert code == 1
        assert "a/b of driver mig.dra.dev has the GPUs of this node: with kubectl mig drain" in said
        drain(rig, "gpu-1")
        wait_released(rig, 1)
        assert check(rig, "--create", "1", "--yes")[0] == 1  # it holds the other one
        assert rig.machine.mutations() == before
        drain(rig)
        wait_released(rig, 0, 1)
        code, said, report = check(rig, "--create", "gpu-1", "--yes")
        assert code == 0, said
        assert report is not None
        assert len(report.trials) > 10
        assert rig.slices() == []
        assert sorted(p.name for p in rig.roots.state.glob("check*")) == []
        resume(rig)
        wait_for("the GPUs", lambda: reasons(rig) == ["", ""])
        assert rig.prepared(rig.claim(SLICE))
