"""Nodes with a layout: claims get just its ready slices; a GPU is given whole or in slices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.keep.labels import node_labels, state_labels
from dra.gpu.inventory import AllocatorKind, Gpu, GpuLayout, NodeMode
from dra.gpu.layouts import place
from dra.resourceslices.partitions import offered
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import gpu, inventory, mignode, request
from tests.dra.gpus import A100

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


def test_claims_get_the_ready_slices_and_no_more() -> None:
    bench = Bench("node-a")
    bench.cluster.set_mignode(mignode("node-a", declared()))
    asked = ["3g.20gb", "2g.10gb", "1g.5gb", "1g.5gb"]
    given = [ask(bench, f"c{n}", f"mig-{profile}") for n, profile in enumerate(asked)]
    assert [sorted(each) for each in given[:2]] == [
        ["gpu-0-mig-3g20gb-9-4"],
        ["gpu-0-mig-2g10gb-14-0"],
    ]
    assert sorted(given[2] + given[3]) == ["gpu-0-mig-1g5gb-19-2", "gpu-0-mig-1g5gb-19-3"]
    assert ask(bench, "more", "mig-1g.5gb") == []


def test_what_no_slice_is_waits_or_gets_a_gpu_that_is_cut_on_demand() -> None:
    bench = Bench("node-a")
    bench.cluster.set_mignode(mignode("node-a", declared()))
    assert ask(bench, "c", "mig-7g.40gb") == []
    bench.cluster.set_mignode(mignode("node-a", declared(), gpu(1, "node-a")))
    bench.run(seconds=60)
    assert bench.devices("c") == ["gpu-1-mig-7g40gb-0-0"]
    assert ask(bench, "d", "mig-7g.40gb") == []
    assert "gpu-0 has no such device (its layout is mixed)" in str(bench.recorder.events)


def test_a_gpu_that_is_to_change_gives_nothing() -> None:
    bench = Bench("node-a")
    waits = declared(unavailable="gpu-0 waits for claim a/b to go", reason="LayoutPending")
    whole = replace(gpu(1, "node-a", mig=False), unavailable="waits", reason="LayoutPending")
    bench.cluster.set_mignode(mignode("node-a", waits, whole))
    assert ask(bench, "slice", "mig-1g.5gb") == []
    assert ask(bench, "whole", "gpu.dra.dev") == []
    told = bench.recorder.events[-2:]
    assert "waits for claim a/b to go" in str(told)


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


def test_where_kube_scheduler_allocates_only_the_ready_slices_are_published() -> None:
    known = replace(inventory("node-a", declared()), allocator=AllocatorKind.SCHEDULER)
    taken = replace(known, gpus=(replace(declared(), layout=GpuLayout("mixed")),))
    assert offered(known, {}, taints=True) == offered(taken, {}, taints=True), "it stays the same"
    assert {p.name for p in offered(known, {}, taints=True).partitions} == {
        "gpu-0-mig-3g20gb-9-4",
        "gpu-0-mig-2g10gb-14-0",
        "gpu-0-mig-1g5gb-19-2",
        "gpu-0-mig-1g5gb-19-3",
    }


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
