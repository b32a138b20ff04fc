"""The process is killed after steps of every operation, and a new one makes everything agree."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from sim.nvml.products import OTHERS, Variants
from tests.failures.helpers.disk import disk
from tests.failures.helpers.forks import Forks
from tests.failures.helpers.steps import Step
from tests.failures.interrupted import recovery, running, scene
from tests.failures.interrupted.scenarios import SCENARIOS
from tests.kubeletplugin.conftest import grouped, together

EVERY_STEP = bool(os.environ.get("MIG_SOAK"))
"""Without, only the steps that ``points`` chooses are killed after, and ways to go on alternate."""

CREATE_GI = ("nvml", "nvmlDeviceCreateGpuInstanceWithPlacement")
CREATE_CI = ("nvml", "nvmlGpuInstanceCreateComputeInstance")
DESTROY_CI = ("nvml", "nvmlComputeInstanceDestroy")
DESTROY_GI = ("nvml", "nvmlGpuInstanceDestroy")
OPEN, FSYNC, REPLACE = ("file", "open"), ("file", "fsync"), ("file", "replace")
UNLINK, PATCH, PUT = ("file", "unlink"), ("api", "PATCH"), ("api", "PUT")
TURNS = ("program", "nvidia-smi")
KINDS = {
    "prepare": {CREATE_GI, CREATE_CI, OPEN, FSYNC, REPLACE, PATCH, PUT},
    "unprepare": {DESTROY_CI, DESTROY_GI, OPEN, FSYNC, REPLACE, UNLINK, PATCH, PUT},
    "recover": {FSYNC, REPLACE},
    "make": {CREATE_GI, CREATE_CI, REPLACE, PUT},
    "keep": {DESTROY_CI, FSYNC, REPLACE, UNLINK, PUT},
    "use": {CREATE_CI, FSYNC, REPLACE, PUT},
    "replace": {DESTROY_GI, CREATE_GI, FSYNC, REPLACE, PUT},
    "meet": {FSYNC, REPLACE, PATCH},
    "give": {DESTROY_CI, DESTROY_GI, FSYNC, REPLACE, PUT},
    "change": {DESTROY_GI, CREATE_GI, FSYNC, REPLACE, PUT},
    "share": {FSYNC, REPLACE, PATCH, PUT},
    "leave a slice to another claim": {FSYNC, UNLINK, PUT},
    "make ahead a share of a slice that another claim has": {REPLACE, PATCH},
    "give back a share of a slice that another claim has": {FSYNC, PUT},
    "prepare a GPU with time slices": {TURNS, FSYNC, REPLACE, PATCH},
    "unprepare a GPU with time slices": {TURNS, FSYNC, REPLACE, UNLINK, PATCH},
}
KINDS |= {
    "take": KINDS["use"],
    "leave": KINDS["keep"],
    "prepare a slice with an MPS daemon": {*KINDS["prepare"], ("api", "POST"), ("mount", "mount")},
    "unprepare a slice with an MPS daemon": {
        *KINDS["unprepare"],
        ("api", "DELETE"),
        ("mount", "umount2"),
    },
}
"""Kinds of steps that an operation takes, by its name or its first word."""
LEAST_STEPS: dict[tuple[str, ...], int] = {scene.WHOLE: 10, scene.SHARED: 25}
"""30 of all others: what is not cut has fewer."""
CONTAINED = (
    "make again two slices that were lost",
    "prepare one slice",
    "unprepare one slice",
    "unprepare the last share of a slice",
    "make ahead a share of a slice that another claim has",
    "give back a share of a slice that another claim has",
    "take a slice of a layout",
    "leave a slice of a layout",
)
"""The same is done after a reboot, for the first of two slices, for one made ahead or kept."""
SPREAD = 4
BRIEFLY = {
    "share a slice that another claim has": 2,
    "leave a slice to another claim": 2,
    "change the layout of a GPU": 2,
    "prepare a slice with an MPS daemon": 2,
    "unprepare a slice with an MPS daemon": 3,
    "prepare a GPU with time slices": 2,
    "unprepare a GPU with time slices": 2,
}
"""At most so many steps are killed after, of others ``SPREAD``, of those of ``CORE`` half.

They are spread over those that change more than files, if any, and the files put in place next.

Mounts and their ends, of which no file tells, are not among so many.
"""
OPERATIONS = [name for name in SCENARIOS if EVERY_STEP or name not in CONTAINED]
CORE = (
    "prepare two slices on two GPUs",
    "unprepare two slices on two GPUs",
    "recover a slice that is half made",
)
DRIVERS = grouped([*reversed(OTHERS)], len(CORE))
"""Variants that one driver plays together: in a soak each variant is a driver of its own.

That which keeps places comes with an Unprepare: it refuses the first Prepare after a removal.
"""
_ON_THE_WAY = re.compile(r"(?:\.[a-z0-9_]{8})?\.(tmp|link|previous)$")
"""Names of files that come before what a start reads."""


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks() as forks:
        yield forks


@pytest.mark.timeout(3600 if EVERY_STEP else 600)
@pytest.mark.parametrize("name", OPERATIONS)
def test_killed_after_any_step_a_new_process_makes_everything_agree(
    forks: Forks, name: str, folder: Path
) -> None:
    taken, killed = kill_after_steps(forks, folder, name)
    kinds = {(t.step.kind, t.step.name) for t in taken}
    assert kinds >= KINDS.get(name, KINDS[name.split(maxsplit=1)[0]])
    assert not SCENARIOS[name].awaited or ("api", "PATCH") in kinds
    assert len(taken) >= LEAST_STEPS.get(SCENARIOS[name].devices, 30)
    assert killed == len(taken) or not EVERY_STEP


@pytest.mark.timeout(3600 if EVERY_STEP else 600)
@pytest.mark.parametrize(
    ("name", "driver"),
    [*(product(SCENARIOS, DRIVERS) if EVERY_STEP else zip(CORE, DRIVERS, strict=True))],
    ids=lambda value: value if isinstance(value, str) else "+".join(value),
)
def test_killed_where_the_hardware_changes_everything_agrees_whatever_the_driver_does(
    forks: Forks, name: str, driver: list[str], folder: Path
) -> None:
    """A soak takes every step of every operation; otherwise three of them, one for each driver."""
    variants = together(*(OTHERS[each] for each in driver))
    taken, killed = kill_after_steps(forks, folder, name, variants=variants)
    assert killed >= 1
    assert killed == len(taken) or not EVERY_STEP


def kill_after_steps(
    forks: Forks, folder: Path, name: str, *, variants: Variants | None = None
) -> tuple[list[running.Taken], int]:
    """Kill after steps of the operation, and recover each time.

    Returns the operation's steps, and how many of them a process was killed after.
    """
    root, before, kept = (folder / n for n in ("node", "before", "kept"))
    scene = forks.run(running.set_scene, str(root), name, variants)
    scene.site.save(before)
    taken = forks.run(running.record, scene, name)
    recovered, killed = set[str](), 0
    most = 0 if name in CORE else BRIEFLY.get(name, SPREAD)
    for k in points(taken, most=most, hardware=variants is not None):
        scene.site.restore(before)
        assert forks.kill(running.act, scene, name, k) == signal.SIGKILL
        killed += 1
        left = disk(str(root))
        if left in recovered:
            continue  # byte for byte what was recovered from already
        recovered.add(left)
        try:
            way = None if EVERY_STEP else len(recovered)
            forks.run(recovery.recover, scene, name, str(kept), way=way)
        except AssertionError as error:
            error.add_note(f"killed after step {k} of {len(taken)}: {taken[k - 1].step}")
            raise
    kinds = Counter(t.step.kind for t in taken)
    print(f"{name}: {len(taken)} steps ({dict(kinds)}), killed after {killed}")  # noqa: T201
    print(f"  recovered from {len(recovered)} different nodes")  # noqa: T201
    return taken, killed


def points(taken: list[running.Taken], *, most: int, hardware: bool) -> list[int]:
    """The numbers of the steps to be killed after, no more than ``most`` where that is given.

    Every second of those that changed something, unlike most of NVML's or a sync of a file: to a
    new process all is then as after the step before. Files on the way to another count once of each
    kind and step. With ``hardware`` only its changes, and the next file that is put in its place
    after each; ``most`` are spread over those, and over changes of pods and settings, or over files
    that are put in their places where nothing else changes. Mounts come besides.
    """
    steps = list(enumerate(taken, 1))
    if EVERY_STEP:
        return [k for k, _ in steps]
    before = ["", *(t.left for t in taken)]
    changed = [(k, t.step) for k, t in steps if t.left != before[k - 1]]
    if not hardware and not most:
        first = {on_the_way(step) or str(k): k for k, step in reversed(changed)}
        return sorted(first.values())[::2]
    chosen: list[int] = []
    due, only_files = True, not any(_is_more_than_a_file(step) for _, step in changed)
    for k, step in changed:
        changes = _is_more_than_a_file(step)
        in_place = step.name == "replace" and not on_the_way(step)
        only_file = only_files and (in_place or step.name == "unlink")
        if changes or only_file or (due and in_place):
            chosen.append(k)
            due = changes
    if hardware:
        return chosen
    mounts = [k for k, step in changed if step.kind == "mount"]
    return sorted({*chosen[:: -(-len(chosen) // most)], *mounts})


def _is_more_than_a_file(step: Step) -> bool:
    return step.kind in {"nvml", "program"} or step.name in {"POST", "DELETE"}


def on_the_way(step: Step) -> str:
    """Step and kind of a file that no start depends on, but that it may find; else empty."""
    path = Path(step.path)
    found = _ON_THE_WAY.search(path.name)
    return f"{step.name} {path.parent.name} {found[1]}" if found else ""
