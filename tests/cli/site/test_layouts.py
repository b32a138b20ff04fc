"""Layouts in the commands: the map draws ready slices, lint and convert read mig-parted's files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from cli.program import main
from dra.common.resources import MIG_NODES
from dra.gpu.inventory import Gpu, GpuLayout, NodeMode
from dra.gpu.layouts import place
from dra.gpu.mignode import to_mignode
from tests.cli.conftest import Mig
from tests.cli.world import World
from tests.controller.helpers.objects import gpu, inventory
from tests.dra.gpus import A100

FILE = """\
version: v1
mig-configs:
  all-1g.5gb:
  - devices: all
    mig-enabled: true
    mig-devices:
      "1g.5gb": 7
"""
CLASS = """\
apiVersion: mig.dra.dev/v1alpha1
kind: MigNodeClass
mode: layout
layout: x
layouts:
  version: v1
  mig-configs:
    x:
    - devices: all
      mig-enabled: true
      mig-devices: {"3g.20gb": 2}
"""


def run(
    capsys: pytest.CaptureFixture[str], folder: Path, command: str, text: str
) -> tuple[int, str]:
    file = folder / "f.yaml"
    file.write_text(text)
    code = main([command, str(file), "--kubeconfig", "/nowhere"])
    return code, capsys.readouterr().out


@pytest.mark.parametrize("text", [FILE, CLASS])
def test_good_ones_are_left_alone(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str
) -> None:
    assert run(capsys, tmp_path, "lint", text) == (0, "1 object: nothing to remark\n")
    body = {"kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a.yaml": text, "b": "x: ["}}
    code, out = run(capsys, tmp_path, "lint", yaml.safe_dump(body))
    assert (code, out) == (0, "1 object: nothing to remark\n")


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        (
            FILE.replace('"1g.5gb": 7', '"1g.5gb": many'),
            7,
            ": it must be a whole number, 0 or more",
        ),
        (FILE.replace("all\n", "some\n"), 4, "'some' is not allowed; allowed are: all, or a list"),
        (CLASS.replace("mode: layout", "mode: fast"), 3, "'fast' is not allowed; allowed are:"),
        (CLASS.replace("layout: x\n", ""), 1, "the field is missing, and mode is 'layout'"),
        (CLASS.replace("3g.20gb", "big"), 11, "'big' is no profile; one is written like 1g.5gb"),
    ],
)
def test_what_is_wrong_is_said_at_its_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, line: int, says: str
) -> None:
    code, out = run(capsys, tmp_path, "lint", text)
    assert code == 1
    assert f"f.yaml:{line}: error: " in out
    assert says in out
    body = {"kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a.yaml": text}}
    code, out = run(capsys, tmp_path, "lint", yaml.safe_dump(body))
    assert code == 1
    assert "ConfigMap c: data.a.yaml: " in out
    assert says in out


def test_small_compute_instances_are_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out = run(capsys, tmp_path, "lint", FILE.replace('"1g.5gb"', '"1c.2g.10gb"'))
    assert code == 0
    assert "f.yaml:7: warning: " in out
    assert "name the whole profile (2g.10gb)" in out


def test_a_file_of_mig_parted_becomes_a_config_map_unchanged(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out = run(capsys, tmp_path, "convert", FILE)
    assert code == 0
    made = yaml.safe_load(out)
    assert (made["kind"], made["metadata"]) == ("ConfigMap", {"name": "mig-parted"})
    assert yaml.safe_load(made["data"]["config.yaml"]) == yaml.safe_load(FILE)
    code, out = run(capsys, tmp_path, "convert", FILE.replace("v1", "v7"))
    assert code == 1
    assert "'v7' is not known; allowed are: v1" in out


def declared(node: str) -> Gpu:
    slices = place(A100, (("2g.10gb", 1), ("3g.20gb", 1)))
    made = gpu(0, node, geometry=A100.only(slices))
    return replace(made, layout=GpuLayout("halves", tuple(o.placement for o in slices)))


def test_the_map_shows_ready_slices(world: World, mig: Mig) -> None:
    world.add_node("node-a", declared("node-a"))
    world.hold("train", "node-a", "gpu-0-mig-3g20gb-9-0", pod_name="trainer-0")
    drawn = [
        [part.strip() for part in line.split("│")]
        for line in mig("map").out.splitlines()
        if "│" in line
    ]
    assert [line[1:3] for line in drawn] == [
        ["3g.20gb allocated", "2g.10gb"],
        ["default/trainer-0", "ready"],
    ]
    wide = mig("map", "-o", "wide").out
    assert "2g.10gb" in wide
    assert " ready " in wide
    [shown] = mig("map", "-o", "json").json["nodes"][0]["gpus"]
    assert shown["layout"] == "halves"
    assert [s["placement"]["start"] for s in shown["ready"]] == [4]
    assert shown["placeable"]["2g.10gb"] == 1


def test_the_map_says_what_a_layout_waits_for(world: World, mig: Mig) -> None:
    world.add_node("node-a", declared("node-a"))
    mode = NodeMode("layout", "pending", "halves", "gpu-0 waits for claim a/b to go")
    found = replace(inventory("node-a", declared("node-a")), mode=mode)
    made = world.api.get(MIG_NODES, "node-a")
    world.set_status(MIG_NODES, made, to_mignode(found)["status"])
    out = mig("map").out
    assert "node-a: layout halves is pending: gpu-0 waits for claim a/b to go" in out
