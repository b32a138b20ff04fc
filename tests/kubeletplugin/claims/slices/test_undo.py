"""Rollback of what kubelet was not told of, and removals that are tried once more."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubeletplugin.claims.removal import Remainder
from kubeletplugin.journal.entries import HELD, LEAVING, State
from tests.kubeletplugin.helpers.gpubench import DESTROY_CI, ELSEWHERE
from tests.kubeletplugin.helpers.nodebench import NodeBench

UID = "uid-a"


@pytest.fixture
def bench(tmp_path: Path) -> NodeBench:
    return NodeBench(tmp_path)


def nothing(left: Remainder) -> bool:
    return (left.recorded, left.failed, str(left)) == ([], [], "")


# -- what kubelet was not told of


@pytest.mark.parametrize("state", [s for s in State if s not in HELD])
def test_a_claim_of_which_kubelet_knows_nothing_is_undone_with_its_spec(
    bench: NodeBench, state: State
) -> None:
    bench.made("a", state)
    bench.specs.files = {UID: ["x"]}
    if state is State.CI_DESTROYED:
        bench.destroy_compute_instances(bench.journal.entries()[0])
    assert nothing(bench.removal.remove_unfinished(UID))
    assert (bench.places(), bench.specs.files) == ([], {})


def test_what_cannot_be_undone_of_it_is_an_orphan(bench: NodeBench) -> None:
    bench.made("a", State.CI_CREATED)
    bench.keep(DESTROY_CI)
    assert bench.removal.remove_unfinished(UID).recorded
    assert bench.states() == [State.ORPHAN]


@pytest.mark.parametrize("state", sorted(HELD))
def test_what_kubelet_was_told_of_stays_with_the_spec(bench: NodeBench, state: State) -> None:
    held = bench.made("a", state)
    bench.made("a", State.CI_CREATED, ELSEWHERE)
    bench.specs.files = {UID: ["x"]}
    assert nothing(bench.removal.remove_unfinished(UID))
    assert (bench.places(), bench.journal.entries()) == ([4], (held,))
    assert bench.specs.files == {UID: ["x"]}


@pytest.mark.parametrize("wiped", [True, False])
def test_what_was_held_before_it_was_made_again_is_lost(
    bench: NodeBench,
    wiped: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    bench.made("a", State.CI_CREATED, remade=True, wiped=wiped)
    bench.made("a", State.CI_CREATED, ELSEWHERE)
    bench.specs.files = {UID: ["x"]}
    assert nothing(bench.removal.remove_unfinished(UID))
    [lost] = bench.journal.entries()
    assert (bench.places(), lost.state, lost.wiped, lost.gi_id) == ([], State.LOST, wiped, None)
    assert bench.specs.files == {UID: ["x"]}


def test_of_an_earlier_boot_it_is_lost_as_well_and_forgotten_once_kubelet_takes_it_back(
    bench: NodeBench,
) -> None:
    bench.journal.put(bench.entry("a", state=State.INTENT, remade=True, boot_id="before"))
    assert nothing(bench.removal.remove_unfinished(UID))
    assert bench.states() == [State.LOST]
    bench.journal.put(bench.entry("a", state=State.DESTROYING, remade=True, boot_id="before"))
    assert nothing(bench.removal.remove_all(UID))
    assert bench.journal.entries() == ()


# -- once more


@pytest.mark.parametrize("state", State)
def test_only_what_is_on_its_way_out_is_tried_once_more(bench: NodeBench, state: State) -> None:
    entry = bench.made("a", state, ci_id=None)
    bench.specs.files = {UID: ["x"]}
    assert nothing(bench.removal.retry(UID))
    assert bench.journal.entries() == (() if state in LEAVING else (entry,))
    assert bench.specs.files == {UID: ["x"]}


def test_once_more_has_no_patience(bench: NodeBench) -> None:
    bench.made("a", State.LEFTOVER)
    bench.keep(DESTROY_CI)
    bench.removal.retry(UID)
    assert bench.clock.waits == [0.1]
