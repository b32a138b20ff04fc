"""Answers from observations that no simulated machine makes."""

from __future__ import annotations

from typing import Any

import pytest

from kubeletplugin.check.items import Item
from kubeletplugin.check.report import Trial
from kubeletplugin.check.trying.experiment import Observations
from kubeletplugin.check.trying.settling import settle


def trial(**more: Any) -> Trial:
    fields: dict[str, Any] = {
        "profile": "1g.10gb",
        "start": 0,
        "size": 1,
        "round": 1,
        "enum": 0,
        "uuid": "a",
        "gpu_instance_id": 7,
        "multiprocessors": 16,
        "memory_mib": 9856,
        "advertised_multiprocessors": 16,
        "advertised_memory_mib": 9984,
    }
    return Trial(**(fields | more))


def settled(*trials: Trial, **seen: Any) -> dict[Item, tuple[str, str]]:
    beliefs = settle(Observations(list(trials), **seen), shutdown="end")
    return {b.item: (b.answer, b.detail) for b in beliefs}


@pytest.mark.parametrize(
    ("uuids", "answer"),
    [
        ((("a", "b"), ("c", "d")), "new"),
        ((("a", "a"), ("c", "c")), "place"),
        ((("a", "a"), ("c", "d")), "mixed"),
    ],
)
def test_uuids_are_compared_place_by_place(uuids: tuple[tuple[str, str], ...], answer: str) -> None:
    trials = [
        trial(profile=f"p{place}", round=number + 1, uuid=uuid)
        for place, pair in enumerate(uuids)
        for number, uuid in enumerate(pair)
    ]
    assert settled(*trials)[Item.MIG_UUID][0] == answer


def test_what_was_not_made_settles_nothing() -> None:
    found = settled(trial(refused="INSUFFICIENT_RESOURCES"))
    unsettled = (Item.MIG_UUID, Item.DELIVERED, Item.INSTANCE_IDS, Item.INSTANCE_LINGERS)
    assert {found[item][0] for item in (*unsettled, Item.TAKEN_PLACEMENT, Item.BUSY)} == {"open"}


def test_less_of_either_is_less() -> None:
    less = settled(trial(multiprocessors=14))[Item.DELIVERED]
    assert less == ("less", "1g.10gb: 14 of 16 multiprocessors, 9856 of 9984 MiB")
    assert settled(trial(memory_mib=5000))[Item.DELIVERED][0] == "less"
    assert settled(trial())[Item.DELIVERED] == ("as advertised", "")


def test_the_best_compute_instance_counts() -> None:
    small, full = trial(multiprocessors=10), trial(enum=7, multiprocessors=16)
    found = settled(small, full)
    assert found[Item.DELIVERED][0] == "as advertised"
    assert found[Item.FULL_COMPUTE] == ("made", "enum 7 of 1g.10gb: made")


def test_profiles_beside_the_plain_ones_may_differ() -> None:
    made, refused = trial(enum=7), trial(enum=8, profile="7g.80gb", refused="NOT_SUPPORTED")
    assert settled(made, refused)[Item.FULL_COMPUTE] == (
        "mixed",
        "enum 7 of 1g.10gb: made; enum 8 of 7g.80gb: NOT_SUPPORTED",
    )
    assert settled(trial())[Item.FULL_COMPUTE][0] == "none offered"


def test_what_could_not_be_tried_says_why() -> None:
    found = settled(trial(), processes="open: cuInit answers 100")
    assert found[Item.PROCESSES] == ("open", "cuInit answers 100")
