"""Labels of nodes are kept where nobody else writes them."""

from __future__ import annotations

import copy

from dra.common.resources import NODES, Obj
from dra.kube.errors import ConflictError, UnavailableError
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.desk import Desk, settle
from tests.controller.helpers.fakeapi import once
from tests.controller.helpers.objects import DRIVER, mignode, node

MARK = f"{DRIVER}/labels"
COUNT = "nvidia.com/mig-1g.5gb.count"
GFD = "nvidia.com/gfd.timestamp"


def labels(bench: Bench, name: str = "node-a") -> dict[str, str]:
    """Labels that were applied last; none where nothing was."""
    found = bench.api.objects.get((NODES.plural, name))
    return dict(found["metadata"]["labels"]) if found else {}


def labelled(**more: str) -> Obj:
    body = node("node-a")
    body["metadata"]["labels"] = {**body["metadata"].get("labels", {}), **more}
    return body


def test_only_where_it_is_asked_for() -> None:
    bench = Bench("node-a")
    assert labels(bench) == {}


def test_a_node_of_ours_gets_them_once() -> None:
    bench = Bench("node-a", node_labels=True)
    assert labels(bench)[COUNT] == "7"
    assert MARK in labels(bench)
    bench.cluster.set_mignode(mignode("node-a"))
    bench.cluster.set_node(labelled(zone="a"))
    bench.run(seconds=1000)
    assert NODES.plural not in bench.api.writes


def test_they_are_written_beside_the_decisions_and_one_node_at_a_time() -> None:
    desk = Desk()
    bench = Bench(send=desk.send, node_labels=True)
    names = [f"node-{n}" for n in range(30)]
    for name in names:
        bench.add_node(name)
    bench.run()
    assert bench.api.writes == []
    desk.work_off()
    assert bench.api.writes.count(NODES.plural) == 1
    settle(bench, desk)
    assert all(labels(bench, name)[COUNT] == "7" for name in names)


def test_they_go_with_the_mignode_and_come_back() -> None:
    bench = Bench("node-a", node_labels=True)
    bench.cluster.remove_mignode("node-a")
    bench.run()
    assert labels(bench) == {}
    bench.cluster.set_mignode(mignode("node-a"))
    bench.run()
    assert labels(bench)[COUNT] == "7"


def test_a_new_leader_takes_off_what_the_one_before_left() -> None:
    bench = Bench(node_labels=True)
    bench.cluster.set_node(labelled(**{MARK: "", COUNT: "7"}))
    bench.run()
    assert bench.api.writes == [NODES.plural]
    assert labels(bench) == {}


def test_a_node_that_never_was_ours_is_not_touched() -> None:
    bench = Bench(node_labels=True)
    bench.cluster.set_node(labelled(**{COUNT: "7"}))
    bench.run()
    assert bench.api.writes == []


def test_nothing_stays_where_gpu_feature_discovery_runs() -> None:
    bench = Bench("node-a", node_labels=True)
    bench.cluster.set_node(labelled(**{GFD: "1767225600"}))
    bench.run()
    assert labels(bench) == {}
    bench.cluster.set_node(labelled())
    bench.run()
    assert labels(bench)[COUNT] == "7"


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


def test_a_failed_write_is_made_again_after_a_pause() -> None:
    bench = Bench(node_labels=True)
    bench.api.refuse = once(NODES.plural, UnavailableError("no"))
    bench.add_node("node-a")
    bench.run()
    assert labels(bench) == {}
    bench.run(seconds=60)
    assert labels(bench)[COUNT] == "7"


def test_a_node_that_is_gone_gets_none() -> None:
    bench = Bench(node_labels=True)
    bench.cluster.set_mignode(copy.deepcopy(mignode("node-a")))
    bench.run()
    assert NODES.plural not in bench.api.writes
