"""Namespaces take turns with new pods, whatever one of them creates."""

from __future__ import annotations

from typing import cast

from controller.cluster.cluster import Cluster
from controller.queue.agenda import Agenda
from dra.pods.pods import Pod, read_pod, urgency
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import claim, pod, versioned

LATER = "2026-01-01T01:00:00Z"


def of(namespace: str, name: str, *, priority: int = 0, created: str = LATER) -> Pod:
    body = pod(name, "c", priority=priority)
    body["metadata"] |= {"namespace": namespace, "creationTimestamp": created}
    return read_pod(versioned(body))


class Queue(Agenda):
    """An agenda of pods that no cluster knows."""

    def __init__(self) -> None:
        super().__init__(cast("Cluster", None), lambda: 0.0)

    def add(self, pod: Pod) -> None:
        self.changed.add(pod.key, urgency(pod))


def flooded(count: int) -> Queue:
    """New pods of one namespace, of which some were looked at."""
    queue = Queue()
    for number in range(count):
        queue.add(of("crowd", f"p-{number:04}", created="2026-01-01T00:00:00Z"))
    for _ in range(10):
        queue.pop()
    return queue


def looks_until(queue: Queue, wanted: Pod) -> int:
    for count in range(1, 5000):
        look = queue.pop()
        assert look is not None
        if look.key == wanted.key:
            return count
    raise AssertionError("it is never looked at")


def test_it_waits_at_most_once_for_each_other_namespace() -> None:
    queue = flooded(3000)
    for number in range(30):
        for name in ("a", "b"):
            queue.add(of(f"n-{number}", name))
    alone = of("quiet", "alone")
    queue.add(alone)
    assert looks_until(queue, alone) <= 32


def test_priority_goes_first_whatever_the_namespace() -> None:
    queue = flooded(3000)
    queue.add(of("quiet", "alone"))
    queue.pop()  # the next turn is not that of the crowd
    urgent = of("crowd", "urgent", priority=10)
    queue.add(urgent)
    assert looks_until(queue, urgent) == 1


def test_who_comes_and_goes_all_the_time_does_not_keep_others_from_their_turn() -> None:
    queue = flooded(100)
    seen = []
    for number in range(100):
        queue.add(of("busy", f"b-{number}"))
        look = queue.pop()
        assert look is not None
        seen.append(look.key[0])
    assert 40 <= seen.count("crowd") <= 60


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
