"""Classes of nodes: what is wrong with them is told of the Nodes, with the words of the node."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from controller.keep.labels import node_labels, state_labels
from dra.common.resources import Obj
from dra.gpu.inventory import Gpu, GpuLayout, NodeMode
from dra.gpu.layouts import choose, place
from kubeletplugin.gpus.node import read_classes
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import DRIVER, gpu, inventory, mignode, node, request
from tests.dra.gpus import A100

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


# -- nodes with a layout: claims get just its ready slices; a GPU is given whole or in slices


COUNTS = (("1g.5gb", 2), ("2g.10gb", 1), ("3g.20gb", 1))


SLICES = place(A100, COUNTS)


LAYOUT = GpuLayout("mixed", tuple(o.placement for o in SLICES))


def declared(minor: int = 0, **fields: object) -> Gpu:
    """A GPU with the layout."""
    made = gpu(minor, "node-a", geometry=A100.only(SLICES))
    return replace(made, layout=LAYOUT, **fields)  # type: ignore[arg-type]


def ask(bench: Bench, name: str, device_class: str) -> list[str]:
    bench.serve(f"pod-{name}", name, request("r", device_class))
    return bench.devices(name)


def test_what_no_slice_is_waits_or_gets_a_gpu_that_is_cut_on_demand() -> None:
    bench = Bench("node-a")
    bench.cluster.set_mignode(mignode("node-a", declared()))
    assert ask(bench, "c", "mig-7g.40gb") == []
    bench.cluster.set_mignode(mignode("node-a", declared(), gpu(1, "node-a")))
    bench.run(seconds=60)
    assert bench.devices("c") == ["gpu-1-mig-7g40gb-0-0"]
    assert ask(bench, "d", "mig-7g.40gb") == []
    assert "gpu-0 has no such device (its layout is mixed)" in str(bench.recorder.events)


@pytest.mark.parametrize("first", ["whole", "slices"])
def test_a_gpu_is_given_whole_or_in_slices_never_both(first: str) -> None:
    bench = Bench("node-a")
    off, on = gpu(0, "node-a", mig=False), gpu(0, "node-a")
    before, after = (off, on) if first == "whole" else (on, off)
    classes = ("gpu.dra.dev", "mig-1g.5gb")
    one, other = classes if first == "whole" else reversed(classes)
    bench.cluster.set_mignode(mignode("node-a", before))
    assert ask(bench, "one", one) != []
    assert ask(bench, "other", other) == []
    # The mode is changed by hand under the claim that holds the GPU, before it is prepared.
    bench.cluster.set_mignode(mignode("node-a", after))
    bench.run(seconds=60)
    assert bench.devices("other") == []


def test_labels_count_what_the_layout_has_and_say_how_far_it_is() -> None:
    known = inventory("n", declared())
    counts = {k: v for k, v in node_labels(known).items() if k.endswith("gb.count")}
    assert counts == {
        "nvidia.com/mig-1g.5gb.count": "2",
        "nvidia.com/mig-2g.10gb.count": "1",
        "nvidia.com/mig-3g.20gb.count": "1",
    }
    assert state_labels(known) == {}
    assert state_labels(replace(known, mode=NodeMode("whole", "pending"))) == {}
    for state in ("pending", "success", "failed"):
        found = state_labels(replace(known, mode=NodeMode("layout", state, "mixed")))
        assert found == {"nvidia.com/mig.config.state": state}
