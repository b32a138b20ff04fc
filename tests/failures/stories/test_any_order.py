"""Random stories of a node; a failing one is printed as the shortest that fails."""

from __future__ import annotations

import os
import random

import hypothesis
import pytest
from hypothesis.stateful import run_state_machine_as_test

from sim.nvml.products import OTHERS
from tests.failures.stories.anyorder import AnyOrder
from tests.failures.stories.story import Counter
from tests.kubeletplugin.conftest import grouped, together

SOAK = bool(os.environ.get("MIG_SOAK"))
SEED = int(os.environ.get("MIG_SEED") or (random.randrange(10**6) if SOAK else 3))
WAYS: dict[str, dict[str, object]] = {
    "nothing idle": {},
    "everything on": {"idle_seconds": 3600.0, "binds_late": True, "shares": True},
}
"""In all of them slices are made ahead and reserved, and kubelet is made to ask again."""
STEPS = int(os.environ.get("MIG_STEPS") or (20_000 if SOAK else 100))


def run(seed: int, *, stories: int, length: int, machine: type[AnyOrder] = AnyOrder) -> None:
    settings = hypothesis.settings(
        max_examples=stories,
        stateful_step_count=length,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    hypothesis.seed(seed)(machine)
    run_state_machine_as_test(machine, settings=settings)


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("way", WAYS)
def test_in_any_order_everything_holds_after_every_step(way: str) -> None:
    machine = type("AnyOrder", (AnyOrder,), WAYS[way])
    before, seed = Counter.steps, SEED
    while Counter.steps - before < STEPS:
        print(f"{Counter.steps - before} steps; seed {seed}")  # noqa: T201
        run(seed, stories=40 if SOAK else 12, length=50 if SOAK else 30, machine=machine)
        seed += 1
    print(f"{Counter.steps - before} steps in all, seeds {SEED} to {seed - 1}")  # noqa: T201


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("names", grouped(list(OTHERS), 3), ids="+".join)
def test_in_any_order_everything_holds_whatever_the_driver_does(names: list[str]) -> None:
    variants = together(*(OTHERS[name] for name in names))
    machine = type("AnyOrder", (AnyOrder,), {"variants": variants})
    run(SEED, stories=40 if SOAK else 2, length=50 if SOAK else 25, machine=machine)
