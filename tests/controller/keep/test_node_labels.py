"""Labels of nodes are kept where nobody else writes them."""

from __future__ import annotations

import re
from dataclasses import replace

from controller.keep.labels import node_labels
from dra.common.resources import NODES, Obj
from dra.kube.errors import ConflictError
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.fakeapi import once
from tests.controller.helpers.objects import DRIVER, gpu, inventory, mignode, node

MARK = f"{DRIVER}/labels"


COUNT = "nvidia.com/mig-1g.5gb.count"


def labels(bench: Bench, name: str = "node-a") -> dict[str, str]:
    """Labels that were applied last; none where nothing was."""
    found = bench.api.objects.get((NODES.plural, name))
    return dict(found["metadata"]["labels"]) if found else {}


def labelled(**more: str) -> Obj:
    body = node("node-a")
    body["metadata"]["labels"] = {**body["metadata"].get("labels", {}), **more}
    return body


def test_a_node_of_ours_gets_them_once() -> None:
    bench = Bench("node-a", node_labels=True)
    assert labels(bench)[COUNT] == "7"
    assert MARK in labels(bench)
    bench.cluster.set_mignode(mignode("node-a"))
    bench.cluster.set_node(labelled(zone="a"))
    bench.run(seconds=1000)
    assert NODES.plural not in bench.api.writes


def test_they_go_with_the_mignode_and_come_back() -> None:
    bench = Bench("node-a", node_labels=True)
    bench.cluster.remove_mignode("node-a")
    bench.run()
    assert labels(bench) == {}
    bench.cluster.set_mignode(mignode("node-a"))
    bench.run()
    assert labels(bench)[COUNT] == "7"


def test_a_node_that_never_was_ours_is_not_touched() -> None:
    bench = Bench(node_labels=True)
    bench.cluster.set_node(labelled(**{COUNT: "7"}))
    bench.run()
    assert bench.api.writes == []


def test_a_label_of_somebody_else_stays_his() -> None:
    bench = Bench(node_labels=True)
    causes = [{"reason": "FieldManagerConflict", "field": f".metadata.labels.{COUNT}"}]
    bench.api.refuse = once(
        NODES.plural, ConflictError("conflict", status=409, details={"causes": causes})
    )
    bench.add_node("node-a")
    bench.run()
    assert COUNT not in labels(bench)
    assert labels(bench)["nvidia.com/gpu.count"] == "1"
    bench.api.writes.clear()
    bench.cluster.set_node(labelled(**{COUNT: "3"}))
    bench.run(seconds=1000)
    assert bench.api.writes == []


# -- labels of nodes are those of GPU feature discovery


VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")


def test_they_tell_of_gpus_and_profiles() -> None:
    found = node_labels(
        replace(
            inventory("n", gpu(0, "n"), gpu(1, "n")),
            driver_version="580.65.06",
            cuda_driver_version="13.0",
        )
    )
    expected = {
        "nvidia.com/mig.capable": "true",
        "nvidia.com/mig.strategy": "mixed",
        "nvidia.com/gpu.count": "2",
        "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB",
        "nvidia.com/gpu.memory": "40960",
        "nvidia.com/cuda.driver-version.full": "580.65.06",
        "nvidia.com/cuda.driver-version.revision": "06",
        "nvidia.com/cuda.runtime-version.minor": "0",
        "nvidia.com/mig-1g.5gb.count": "14",
        "nvidia.com/mig-2g.10gb.count": "6",
        "nvidia.com/mig-3g.20gb.count": "4",
        "nvidia.com/mig-7g.40gb.count": "2",
        "nvidia.com/mig-1g.5gb.me.count": "2",
        "nvidia.com/mig-1g.10gb.count": "8",
        "nvidia.com/mig-1g.5gb.slices.gi": "1",
    }
    assert {key: found.get(key) for key in expected} == expected
    assert all(VALUE.fullmatch(value) for value in found.values())


def test_gpus_without_mig_mode_count_and_have_no_slices() -> None:
    off = replace(gpu(0, "n"), mig_enabled=False)
    found = node_labels(inventory("n", off, gpu(1, "n")))
    assert found["nvidia.com/gpu.count"] == "2"
    assert found["nvidia.com/mig-1g.5gb.count"] == "7"
    none = replace(off, geometry=None)
    found = node_labels(inventory("n", none))
    assert found["nvidia.com/mig.capable"] == "false"
    assert not any("mig-" in key or "strategy" in key for key in found)


def test_most_gpus_give_the_product() -> None:
    others = [replace(gpu(n, "n"), product_name="NVIDIA H100 80GB HBM3") for n in (1, 2)]
    found = node_labels(inventory("n", gpu(0, "n"), *others))
    assert found["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3"
    assert found["nvidia.com/gpu.count"] == "3"


def test_what_no_label_can_hold_is_changed_and_what_is_unknown_left_out() -> None:
    odd = replace(gpu(0, "n"), product_name="GPU (beta)/" + "x" * 80, architecture="", memory_mib=0)
    found = node_labels(inventory("n", odd))
    assert VALUE.fullmatch(found["nvidia.com/gpu.product"])
    assert "nvidia.com/gpu.family" not in found
    assert "nvidia.com/gpu.memory" not in found
    assert node_labels(replace(inventory("n"), gpus=())) == {}
