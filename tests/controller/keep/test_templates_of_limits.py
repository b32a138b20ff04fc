"""Templates that limits become are there where a namespace opted in, for whoever waits for them."""

from __future__ import annotations

import pytest

from dra.kube.errors import ForbiddenError, InvalidError, KubeError
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.fakeapi import once
from tests.controller.helpers.limit_templates import TEMPLATES, made, namespace, of_classes, waiting


def test_a_namespace_that_opts_in_gets_one_for_each_profile() -> None:
    bench = Bench("node-a")
    bench.cluster.set_namespace(namespace(labels={}))
    bench.run()
    assert made(bench) == set()
    bench.cluster.set_namespace(namespace())
    bench.run()
    assert made(bench) == of_classes(bench)
    assert "nvidia.com-mig-1g.5gb" in made(bench)
    bench.api.writes.clear()
    bench.cluster.set_namespace(namespace())
    bench.run(seconds=1000)
    assert bench.api.writes == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [("nvidia.com-gpumem-8000", True), ("nvidia.com-gpumem-0", False), ("mine", False)],
)
def test_what_a_pod_waits_for_is_made_if_it_is_one_of_ours(name: str, *, expected: bool) -> None:
    bench = Bench("node-a")
    bench.cluster.set_namespace(namespace())
    bench.run()
    bench.pod(waiting("p", name))
    bench.run()
    assert (name in made(bench)) is expected


def test_a_refusal_is_tried_again_after_a_pause_and_keeps_no_other_away() -> None:
    bench = Bench("node-a")
    bench.api.refuse = lambda what: ForbiddenError("no") if what == TEMPLATES else None
    bench.cluster.set_namespace(namespace())
    bench.run()
    assert made(bench) == set()
    bench.api.refuse = lambda _: None
    bench.pod(waiting("p", "nvidia.com-gpumem-8000"))
    bench.run()
    assert made(bench) == {"nvidia.com-gpumem-8000"}, "what a pod waits for needs no pause"
    bench.run(seconds=60)
    assert of_classes(bench) <= made(bench)


@pytest.mark.parametrize(
    ("words", "reason", "remedy"),
    [
        (
            "exceeded quota: q, requested: count/resourceclaimtemplates=1",
            "TooMany",
            "let its quota",
        ),
        ("denied by policy x", "AllocationRefused", "it is tried again"),
    ],
)
@pytest.mark.parametrize("name", ["nvidia.com-gpumem-8000", "nvidia.com-mig-1g.5gb"])
def test_pods_are_told_why_their_template_is_refused(
    name: str, words: str, reason: str, remedy: str
) -> None:
    bench = Bench("node-a")
    bench.api.refuse = lambda what: ForbiddenError(words) if what == TEMPLATES else None
    bench.cluster.set_namespace(namespace())
    bench.run()
    bench.pod(waiting("p", name))
    bench.run(seconds=100)
    ((_, told, said),) = [each[1:] for each in bench.recorder.events if each[1] == "p"]
    assert told.startswith(reason)
    assert all(each in said for each in (name, words, remedy))
    bench.api.refuse = lambda _: None
    bench.run(seconds=100)
    assert name in made(bench)


def test_a_template_of_somebody_else_is_left_alone() -> None:
    bench = Bench("node-a")
    refusal: KubeError = InvalidError("spec: field is immutable", status=422)
    bench.api.refuse = once(TEMPLATES, refusal)
    bench.cluster.set_namespace(namespace())
    bench.run()
    lacking = of_classes(bench) - made(bench)
    assert len(lacking) == 1
    bench.run(seconds=1000)
    assert of_classes(bench) - made(bench) == lacking


def test_nothing_is_made_for_a_namespace_that_opts_out_or_goes() -> None:
    bench = Bench("node-a")
    bench.cluster.set_namespace(namespace("one"))
    bench.cluster.set_namespace(namespace("two"))
    bench.cluster.set_namespace(namespace("one", {}))
    bench.cluster.remove_namespace("two")
    bench.run()
    assert made(bench) == set()


HOUR = 3600.0


def idle(*templates: str) -> Bench:
    """A namespace that opted in, with templates that a pod had waited for, which is gone."""
    bench = Bench("node-a")
    bench.cluster.set_namespace(namespace())
    bench.pod(waiting("p", *templates))
    bench.run()
    assert set(templates) <= made(bench)
    bench.remove_pod("p")
    bench.run()
    return bench


def later(bench: Bench, seconds: float = HOUR + 1200) -> None:
    """Time passes, with a look every ten minutes."""
    for _ in range(int(seconds / 600)):
        bench.run(seconds=600)


def test_one_that_no_pod_has_named_for_an_hour_goes_and_those_of_profiles_stay() -> None:
    odd = ("nvidia.com-gpumem-8000", "nvidia.com-mig-1g.5gb-gpu-spread")
    bench = idle(*odd)
    bench.run(seconds=HOUR - 1300)
    assert set(odd) <= made(bench)
    later(bench)
    assert made(bench) == of_classes(bench)


def test_another_of_the_same_name_and_a_refusal_leave_it() -> None:
    bench = idle("nvidia.com-gpumem-8000", "nvidia.com-gpumem-9000")
    bench.api.objects[TEMPLATES, "nvidia.com-gpumem-8000"]["metadata"]["uid"] = "another"
    bench.api.refuse = once(f"delete {TEMPLATES}", ForbiddenError("no"))
    later(bench)
    assert "nvidia.com-gpumem-8000" in made(bench)
    later(bench)
    assert "nvidia.com-gpumem-9000" not in made(bench), "tried again at the next look"
