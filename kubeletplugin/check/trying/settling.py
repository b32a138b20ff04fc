"""Answers to questions that no source settles, drawn from the observations of an experiment."""

from __future__ import annotations

from collections.abc import Sequence

from kubeletplugin.check.items import Item
from kubeletplugin.check.report import Belief, Trial
from kubeletplugin.check.trying.experiment import Observations

OPEN = "open"
_BESIDE = 7
_LEAST_MEMORY_SHARE = 0.9


def settle(seen: Observations, *, shutdown: str) -> tuple[Belief, ...]:
    """One answer for each item that the experiment is about."""
    made = [t for t in seen.trials if not t.refused]
    codes = (
        (Item.TAKEN_PLACEMENT, seen.taken, "creating at a placement that is taken"),
        (Item.BUSY, seen.busy, f"destroying a GPU instance with a compute instance{_used(seen)}"),
    )
    return (
        _repeated(Item.MIG_UUID, made, "uuid", same="place"),
        _delivered(made),
        _full_compute(seen.trials),
        *(Belief(item=i, answer=code or OPEN, detail=detail) for i, code, detail in codes),
        _worded(Item.PROCESSES, seen.processes, "a process of ours in the slice"),
        _repeated(Item.INSTANCE_IDS, made, "gpu_instance_id", same="same"),
        Belief(
            item=Item.INSTANCE_LINGERS,
            answer=str(seen.lingered) if made else OPEN,
            detail="IN_USE answers before a GPU instance without compute instance was let go",
        ),
        _worded(Item.CAPABILITY_DESCRIPTOR, seen.descriptor, "read after the entry was removed"),
        _worded(Item.CAPABILITY_DIRECTORY, seen.directory, "marked and held open"),
        _worded(Item.CONFIG_EVENTS, seen.config_events, "nvmlEventMigConfigChange"),
        _worded(Item.SHUTDOWN, shutdown, "an event wait while nvmlShutdown is called"),
    )


def _repeated(item: Item, made: Sequence[Trial], name: str, *, same: str) -> Belief:
    """Answer whether a slice has the same in both rounds: at one place, of one profile and enum."""
    pairs = [
        (getattr(first, name), getattr(second, name))
        for first in made
        for second in made
        if (first.round, second.round) == (1, 2) and _what(first) == _what(second)
    ]
    equal = sum(a == b for a, b in pairs)
    detail = f"{equal} of {len(pairs)} slices that were made again had an equal one"
    if not pairs:
        return Belief(item=item, answer=OPEN, detail="no slice was made twice")
    answer = {0: "new", len(pairs): same}.get(equal, "mixed")
    return Belief(item=item, answer=answer, detail=detail)


def _what(trial: Trial) -> tuple[str, int, int]:
    return trial.profile, trial.start, trial.enum


def _delivered(made: Sequence[Trial]) -> Belief:
    """Answer whether the best compute instance of a profile has what the GPU profile says."""
    less = []
    for profile in dict.fromkeys(t.profile for t in made):
        got = max((t for t in made if t.profile == profile), key=lambda t: t.multiprocessors)
        wanted = (got.advertised_multiprocessors, got.advertised_memory_mib)
        if got.multiprocessors < wanted[0] or got.memory_mib < wanted[1] * _LEAST_MEMORY_SHARE:
            less.append(
                f"{profile}: {got.multiprocessors} of {wanted[0]} multiprocessors, "
                f"{got.memory_mib} of {wanted[1]} MiB"
            )
    answer = OPEN if not made else "less" if less else "as advertised"
    return Belief(item=Item.DELIVERED, answer=answer, detail="; ".join(less))


def _full_compute(trials: Sequence[Trial]) -> Belief:
    """The answer about the compute-instance profiles beside the plain ones."""
    tried = {(t.profile, t.enum): t.refused for t in trials if t.enum >= _BESIDE}
    alike: dict[tuple[int, str], list[str]] = {}
    for (profile, enum), refused in tried.items():
        alike.setdefault((enum, refused or "made"), []).append(profile)
    words = "; ".join(
        f"enum {enum} of {', '.join(profiles)}: {outcome}"
        for (enum, outcome), profiles in sorted(alike.items())
    )
    kinds = {"refused" if refused else "made" for refused in tried.values()}
    answer = "none offered" if not kinds else kinds.pop() if len(kinds) == 1 else "mixed"
    return Belief(item=Item.FULL_COMPUTE, answer=answer, detail=words)


def _worded(item: Item, word: str, detail: str) -> Belief:
    """An answer of one word; what follows ``open:`` says why there is none."""
    answer, _, why = word.partition(": ")
    return Belief(item=item, answer=answer or OPEN, detail=why or detail)


def _used(seen: Observations) -> str:
    return f"; a compute instance with a process in it: {seen.in_use}" if seen.in_use else ""
