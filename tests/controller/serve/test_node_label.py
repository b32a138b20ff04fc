"""The label of a claim that names its node, by which that node's plugin watches it."""

from __future__ import annotations

from controller import times
from controller.serve.world import LABELS_AT_ONCE
from dra.claims.allocation import label_of, node_label
from dra.common.resources import PODS, RESOURCE_CLAIMS
from dra.kube.errors import KubeError, UnavailableError
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import DRIVER, FINALIZER, claim, pod

CLAIM, STATUS, POD = "resourceclaims", "resourceclaims/status", "pods"
LABEL = node_label(DRIVER)


def test_it_comes_with_the_finalizer_and_costs_no_write() -> None:
    bench = Bench("node-a")
    body = claim("c")
    body["metadata"]["labels"] = {"team": "a"}
    bench.claim(body)
    bench.pod(pod("p", "c"))
    bench.run()
    assert bench.api.get(RESOURCE_CLAIMS, "c")["metadata"]["labels"] == {
        "team": "a",
        LABEL: "node-a",
    }
    assert bench.api.writes == [CLAIM, STATUS]


def with_finalizers(bench: Bench, *names: str) -> None:
    """Pods whose claims had their finalizer when they were made."""
    for name in names:
        body = claim(name)
        body["metadata"]["finalizers"] = [FINALIZER]
        bench.claim(body)
        bench.pod(pod(f"p-{name}", name))
    bench.run()


def test_the_others_get_theirs_once_the_burst_is_over_as_long_as_their_pods_wait() -> None:
    bench = Bench(*(f"node-{n}" for n in range(4)), finalizer_at_creation=True)
    names = [f"c{number:03}" for number in range(20)]
    with_finalizers(bench, *names)
    bench.run(seconds=times.BURST_OVER - 0.1)
    with_finalizers(bench, "one-more")
    bench.run(seconds=0.2)
    assert bench.api.writes.count(CLAIM) == LABELS_AT_ONCE + 1
    running = bench.api.get(PODS, f"p-{names[-1]}")
    spec = {**running["spec"], "nodeName": bench.node_of(names[-1])}
    bench.pod({**running, "spec": spec, "status": {"phase": "Running"}})
    bench.run(seconds=times.BURST_OVER)
    assert LABELS_AT_ONCE < len(labelled(bench, *names)) < len(names)
    for _ in range(5):
        bench.run(seconds=times.LABEL_LATER)
    assert labelled(bench, *names) == names[:-1]


def labelled(bench: Bench, *names: str) -> list[str]:
    """The claims that name the node which they are allocated to."""
    bodies = {name: bench.api.get(RESOURCE_CLAIMS, name) for name in names}
    named = {n: b["metadata"].get("labels", {}).get(LABEL) for n, b in bodies.items()}
    return [name for name in names if named[name] == bench.node_of(name)]


def test_one_of_another_node_is_replaced_once_kube_scheduler_has_had_its_say() -> None:
    """It takes the allocation back with the version that it saw, and rests for long if that fails.

    One that names another node says that it did so before.
    """
    bench = Bench("node-a")
    body = claim("c")
    body["metadata"] |= {"finalizers": [FINALIZER], "labels": {LABEL: "node-z"}}
    bench.claim(body)
    bench.pod(pod("p", "c"))
    bench.run()
    assert bench.devices("c")
    assert bench.api.get(RESOURCE_CLAIMS, "c")["metadata"]["labels"] == {LABEL: "node-z"}
    for _ in range(3):
        bench.run(seconds=times.BURST_OVER)
    assert bench.api.get(RESOURCE_CLAIMS, "c")["metadata"]["labels"] == {LABEL: "node-a"}


def test_a_label_that_cannot_be_written_holds_up_nothing() -> None:
    bench = Bench("node-a", finalizer_at_creation=True)
    body = claim("c")
    body["metadata"]["finalizers"] = [FINALIZER]
    bench.claim(body)

    def refuse(what: str) -> KubeError | None:
        return UnavailableError("no answer") if what == CLAIM else None

    bench.api.refuse = refuse
    bench.pod(pod("p", "c", schedulingGates=[{"name": FINALIZER}]))
    bench.run()
    assert bench.devices("c")
    assert bench.api.writes == [STATUS, POD], "the gate was lifted all the same"


def test_a_name_that_is_too_long_for_a_label_is_a_digest() -> None:
    names = {"a" * 200, "b" * 200, "c" * 64}
    assert len({label_of(name) for name in names}) == len(names)
    assert all(len(label_of(name)) <= 63 for name in names)
    assert label_of("n" * 63) == "n" * 63
