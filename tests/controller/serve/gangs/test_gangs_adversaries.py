"""Labels and objects of gangs set to harm others: what is tried costs others nothing, or little."""

from __future__ import annotations

from typing import Any

import pytest

from controller.serve import gangs as gang_counts
from controller.serve.gangs import REST
from dra.gangs.membership import COUNT_LABEL, KUBERNETES, NAME_LABEL
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import claim, pod, request
from tests.controller.serve.gangs.gangpods import NODES, create, group, grouped, held, told
from tests.controller.serve.gangs.test_gangs_hostile import Counted, single


def calls_of(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[str]:
    """Calls of a function from now on."""
    calls: list[str] = []
    function = getattr(owner, name)

    def noted(*args: Any, **more: Any) -> Any:
        calls.append(name)
        return function(*args, **more)

    monkeypatch.setattr(owner, name, noted)
    return calls


def labelled(bench: Bench, name: str, **labels: str) -> None:
    """Somebody changes a pod's gang."""
    body = bench.api.objects["pods", name]
    names = {"gang": NAME_LABEL, "size": COUNT_LABEL}
    known = body["metadata"].get("labels", {})
    new = known | {names[k]: v for k, v in labels.items()}
    bench.pod({**body, "metadata": {**body["metadata"], "labels": new}})


def test_no_more_pods_than_a_bound_are_examined_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang_counts, "_MOST_EXAMINED", 20)
    bench = Bench("node-a")
    create(bench, "a", *range(30), size="25", profile="9g.99gb")
    create(bench, "a", *range(30, 35), size="25", profile="1g.5gb")
    examined = calls_of(monkeypatch, gang_counts, "examine")
    bench.run()
    assert len(examined) == 20
    assert "can have any" in told(bench, "a-30")


def test_a_name_is_that_of_another_gang_in_another_namespace() -> None:
    bench = Bench(*NODES)
    create(bench, "a", 0, 1)
    for number in (2, 3):
        name = f"a-{number}"
        body, asked = pod(name, name), claim(name, request("r", "mig-3g.20gb"))
        body["metadata"] |= {"namespace": "other", "labels": {NAME_LABEL: "a", COUNT_LABEL: "4"}}
        asked["metadata"]["namespace"] = "other"
        bench.claim(asked)
        bench.pod(body)
    bench.run()
    assert not held(bench, "a")
    for name, namespace in (("a-0", "default"), ("a-2", "other")):
        assert f"pod group {namespace}/a is allocated once 4" in told(bench, name)
        assert "there are 2" in told(bench, name)


def test_an_object_of_another_namespace_says_nothing() -> None:
    resource, bench = KUBERNETES.at_version("v1alpha2"), Bench(*NODES)
    bench.cluster.gangs.note_listed(resource)
    foreign = group(1)
    foreign["metadata"]["namespace"] = "other"
    bench.cluster.gangs.change_group(resource, ("other", "a"), foreign)
    grouped(bench, 0, 1)
    bench.run()
    assert not held(bench, "a")
    assert "PodGroup default/a of scheduling.k8s.io does not exist" in told(bench, "a-0")


def test_a_label_that_changes_again_and_again_keeps_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench, counted = Bench("node-a"), Counted(monkeypatch)
    counted.bench = bench
    create(bench, "a", *range(40), size="39", profile="7g.40gb")
    bench.run()
    began, before = bench.time, counted.parts
    for number in range(4):
        for gang in "babababa":
            labelled(bench, "a-0", gang=gang)
            bench.run(seconds=0.01)
        single(bench, f"p-{number}")
        bench.run(seconds=0.1)
        bench.run(seconds=0.1)
        assert bench.devices(f"p-{number}")
        bench.delete_pod(f"p-{number}")
        bench.change_claim(f"p-{number}", allocation=None)
    assert (counted.parts - before) * 0.1 <= (bench.time - began) / 2 + 0.1


def test_pods_that_join_a_gang_one_after_the_other_do_not_have_it_decided_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench, counted = Bench("node-a"), Counted(monkeypatch)
    counted.bench = bench
    create(bench, "a", 0, 1, size="2", profile="7g.40gb")
    bench.run()
    began = bench.time
    for number in range(2, 60):
        create(bench, "a", number, size="2", profile="7g.40gb")
        bench.run(seconds=0.05)
    assert counted.parts <= 1 + (bench.time - began) / REST / 0.1
    for name in ("a-0", "a-59"):
        assert "needs slices for 2 pods at once, and 1 fit" in told(bench, name)
