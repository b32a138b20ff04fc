"""Namespaces take turns with new pods, whatever one of them creates."""

from __future__ import annotations

from dra.pods.pods import Pod, read_pod
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import claim, pod, versioned

LATER = "2026-01-01T01:00:00Z"


def of(namespace: str, name: str, *, priority: int = 0, created: str = LATER) -> Pod:
    body = pod(name, "c", priority=priority)
    body["metadata"] |= {"namespace": namespace, "creationTimestamp": created}
    return read_pod(versioned(body))


def test_a_slice_goes_to_the_other_namespace_within_a_few_pieces_of_work() -> None:
    bench = Bench("node-a")
    for number in range(300):
        name = f"p-{number:03}"
        bench.ask(name, name, cpu=f"{number + 1}m", nodeSelector={"no": "where"})
    bench.engine.absorb()
    for _ in range(320):
        bench.engine.work()
    body, late = claim("late"), pod("late", "late")
    for obj in (body, late):
        obj["metadata"] |= {"namespace": "quiet", "creationTimestamp": LATER}
    bench.claim(body)
    bench.pod(late)
    pieces = 0
    while not bench.devices("late"):
        bench.engine.absorb()
        assert bench.engine.work()
        pieces += 1
    assert pieces <= 10
