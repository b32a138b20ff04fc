"""The check beside a plugin that serves: it makes slices only while no GPU is open in that."""

from __future__ import annotations

import os
import subprocess
import sys

from kubeletplugin.check.report import Item, Mark, Report, decode
from kubeletplugin.ownership import owned_at_once
from tests.helpers.waiting import PATIENCE, wait_for
from tests.kubeletplugin.helpers.releasing import drain, resume, wait_released
from tests.kubeletplugin.helpers.reported import reasons
from tests.kubeletplugin.helpers.rig import Rig

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
    return done.returncode, done.stdout + done.stderr, decode(data) if data else None


def test_a_node_that_serves_is_whole_and_nothing_of_it_is_changed(rig: Rig) -> None:
    assert rig.prepared(rig.claim(SLICE))
    before = rig.machine.snapshot()
    code, said, report = check(rig)
    assert code == 0, said
    assert report is not None
    assert rig.machine.snapshot() == before
    assert [len(gpu.instances) for gpu in report.gpus] == [1, 0]
    words = {f.item: f.text for f in report.findings if f.mark is Mark.OK}
    assert "mig.dra.dev-reg.sock" in words[Item.KUBELET]
    assert "resource.k8s.io: v1" in words[Item.CLUSTER]
    assert any("k8s.mig.dra.dev/claim" in fact for fact in report.facts[Item.CDI])


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
