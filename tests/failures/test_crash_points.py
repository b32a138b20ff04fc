"""The process is killed after every single step, and a new one makes everything agree."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.failures import scenarios
from tests.failures.forks import Forks

EVERY_STEP = bool(os.environ.get("MIG_SOAK"))
"""Without, calls of NVML that are shown to have changed nothing are not killed after."""

KINDS = {
    "prepare": {
        ("nvml", "nvmlDeviceCreateGpuInstanceWithPlacement"),
        ("nvml", "nvmlGpuInstanceCreateComputeInstance"),
        ("file", "open"),
        ("file", "fsync"),
        ("file", "replace"),
        ("api", "PATCH"),
        ("api", "PUT"),
    },
    "unprepare": {
        ("nvml", "nvmlComputeInstanceDestroy"),
        ("nvml", "nvmlGpuInstanceDestroy"),
        ("file", "open"),
        ("file", "fsync"),
        ("file", "replace"),
        ("file", "unlink"),
        ("api", "PATCH"),
        ("api", "PUT"),
    },
    "recover": {("file", "fsync"), ("file", "replace")},
}
LEAST_STEPS = 40


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks() as forks:
        yield forks


@pytest.mark.timeout(3600 if EVERY_STEP else 600)
@pytest.mark.parametrize("name", scenarios.SCENARIOS)
def test_killed_after_any_step_a_new_process_makes_everything_agree(
    forks: Forks, name: str, folder: Path
) -> None:
    root, before, kept = (folder / n for n in ("node", "before", "kept"))
    scene = forks.run(scenarios.set_scene, str(root), name)
    scene.site.save(before)
    taken = forks.run(scenarios.record, scene, name)
    assert {(t.step.kind, t.step.name) for t in taken} >= KINDS[name.split(maxsplit=1)[0]]
    assert len(taken) >= LEAST_STEPS
    recovered, killed, last = set[str](), 0, ""
    for k, point in enumerate(taken, 1):
        changed, last = point.left != last, point.left
        if point.step.kind == "nvml" and not changed and not EVERY_STEP:
            continue  # it read: to a new process, all is as after the step before
        scene.site.restore(before)
        assert forks.kill(scenarios.act, scene, name, k) == signal.SIGKILL
        killed += 1
        left = scenarios.disk(str(root))
        if left in recovered:
            continue  # byte for byte what was recovered from already
        recovered.add(left)
        try:
            forks.run(scenarios.recover, scene, name, str(kept), every_way=EVERY_STEP)
        except AssertionError as error:
            error.add_note(f"killed after step {k} of {len(taken)}: {point.step}")
            raise
    kinds = Counter(t.step.kind for t in taken)
    print(f"{name}: {len(taken)} steps ({dict(kinds)}), killed after {killed}")  # noqa: T201
    print(f"  recovered from {len(recovered)} different nodes")  # noqa: T201
    assert killed == len(taken) or not EVERY_STEP
