"""Classes of nodes: what is wrong with them is told of the Nodes, with the words of the node."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest

from dra.common.resources import Obj
from dra.gpu.layouts import choose
from kubeletplugin.gpus.node import read_classes
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import DRIVER, mignode, node

HEAD = "apiVersion: mig.dra.dev/v1alpha1\nkind: MigNodeClass\n"
LAYOUTS = "version: v1\nmig-configs:\n  pairs:\n  - devices: all\n    mig-enabled: false\n"
SECONDS = 11.0


def labelled(name: str, **labels: str) -> Obj:
    keys = {"config": "nvidia.com/mig.config"}
    found = {keys.get(k, f"{DRIVER}/{k.replace('_', '-')}"): v for k, v in labels.items()}
    body = node(name)
    body["metadata"]["labels"] = {**body["metadata"].get("labels", {}), **found}
    return body


def told(bench: Bench) -> list[tuple[str, str]]:
    """The Nodes about which something was said since the last call, with the words."""
    found = [(n, m) for k, n, r, m in bench.recorder.events if (k, r) == ("Node", REASON)]
    bench.recorder.events.clear()
    return found


REASON = "NodeClassInvalid"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "default.yaml").write_text(HEAD)
    (tmp_path / "config.yaml").write_text(LAYOUTS)
    (tmp_path / "notes.txt").write_text("[")
    return tmp_path


def started(folder: Path, *nodes: str) -> Bench:
    return Bench(*nodes, node_classes=folder)


def test_without_files_nothing_is_said() -> None:
    bench = Bench("node-a")
    bench.cluster.set_node(labelled("node-a", mode="fast"))
    bench.run(seconds=SECONDS)
    assert told(bench) == []
    assert bench.engine.due == inf


def test_a_file_that_becomes_wrong_is_told_of_each_node_once_and_until_it_is_right(
    folder: Path,
) -> None:
    bench = started(folder, "node-a", "node-b")
    assert told(bench) == []
    (folder / "default.yaml").write_text(HEAD + "mode: fast\n")
    bench.run()
    assert told(bench) == [], "it looks every ten seconds"
    bench.run(seconds=SECONDS)
    said = told(bench)
    words = choose({}, read_classes(folder), driver=DRIVER).problem
    assert "field 'mode': 'fast' is not allowed; allowed are: on-demand, layout, whole" in words
    assert said == [("node-a", words), ("node-b", words)]
    bench.run(seconds=SECONDS)
    bench.cluster.set_mignode(mignode("node-a"))
    bench.run(seconds=SECONDS)
    assert told(bench) == []
    (folder / "default.yaml").write_text(HEAD)
    bench.run(seconds=SECONDS)
    (folder / "default.yaml").write_text(HEAD + "mode: fast\n")
    bench.run(seconds=SECONDS)
    assert told(bench) == said


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ({"mode": "fast"}, "'fast' is not allowed; allowed are: on-demand, layout, whole"),
        ({"config": "trios"}, "there is no layout 'trios'; there are: pairs"),
        ({"node_class": "x"}, "there is no class 'x' of nodes; there are: default"),
    ],
)
def test_a_wrong_label_is_told_at_once(folder: Path, labels: dict[str, str], words: str) -> None:
    bench = started(folder, "node-a", "node-b")
    bench.cluster.set_node(labelled("node-a", **labels))
    bench.run()
    [(name, said)] = told(bench)
    assert (name, words in said) == ("node-a", True)
    bench.cluster.set_node(labelled("node-a"))
    bench.run()
    bench.cluster.set_node(labelled("node-a", **labels))
    bench.run()
    assert told(bench) == [(name, said)]


def test_a_node_of_others_has_no_class_but_one_that_was_labelled_for_us(folder: Path) -> None:
    bench = started(folder)
    for name, labels in (("other", {"config": "all-1g.5gb"}), ("new", {"mode": "fast"})):
        bench.cluster.set_node(labelled(name, **labels))
    bench.run()
    assert [name for name, _ in told(bench)] == ["new"], "its plugin is not there yet"
    bench.cluster.remove_node("new")
    bench.run(seconds=SECONDS)
    bench.cluster.set_node(labelled("new", mode="fast"))
    bench.run()
    assert [name for name, _ in told(bench)] == ["new"]


def test_a_directory_that_cannot_be_read_says_nothing_about_nodes(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = started(folder / "nowhere", "node-a")
    bench.cluster.set_node(labelled("node-a", mode="fast"))
    for _ in range(3):
        bench.run(seconds=SECONDS)
    assert told(bench) == []
    said = [r for r in caplog.records if "classes of nodes cannot be read" in r.message]
    assert len(said) == 1
