"""Rollback of a whole claim: what goes, what stays in which state, and what is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from dra.claims.reasons import NodeReason
from kubeletplugin.claims.removal import Remainder
from kubeletplugin.gpus.gpu import Conflict
from kubeletplugin.journal.entries import State
from tests.kubeletplugin.helpers.nodebench import NodeBench

UID = "uid-a"


@pytest.fixture
def bench(tmp_path: Path) -> NodeBench:
    return NodeBench(tmp_path)


def nothing(left: Remainder) -> bool:
    return (left.recorded, left.failed, str(left)) == ([], [], "")


# -- what is removed


@pytest.mark.parametrize("there", [True, False], ids=["there", "away"])
def test_a_record_that_went_meanwhile_is_neither_removed_again_nor_kept(
    bench: NodeBench, *, there: bool
) -> None:
    entry = bench.made("a", State.PREPARED)

    # Somebody else undoes the claim while its GPU is waited for.
    def unit(uuid: str) -> object:
        bench.journal.remove(entry)
        assert uuid == bench.unit.uuid
        return bench.unit if there else None

    bench.hardware.unit = unit  # type: ignore[assignment, method-assign]
    assert nothing(bench.removal.remove_all(UID))
    assert bench.places() == [4]


# -- what stays


REFUSING = {
    "frozen": "nothing is changed on gpu-0: a manager is at work",
    "released": "gpu-0 is released",
    "busy": "gpu-0 is busy with another claim; it is tried again",
    "hanging": "gpu-0 is busy with another claim; a call hangs",
}


@pytest.mark.parametrize("case", REFUSING)
def test_on_a_gpu_that_is_somebody_elses_now_nothing_is_destroyed(
    bench: NodeBench, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = bench.made("a", State.PREPARED)
    if case == "frozen":
        conflict = Conflict(NodeReason.PAUSED, "a manager is at work", frozen=True)
        bench.unit.conflict = conflict
    elif case == "released":
        bench.unit.released = "released"
    else:
        assert bench.unit.lock.try_enter()
        if case == "hanging":
            monkeypatch.setattr(bench.session, "hangs", lambda _: "a call hangs")
    left = bench.removal.remove_all(UID)
    assert left.recorded == [f"{entry.device}: {REFUSING[case]}"]
    assert (bench.slices_now(), bench.states()) == ([(4, 1)], [State.LEFTOVER])
    if case in {"frozen", "released"}:
        assert bench.unit.lock.try_enter(), "the GPU's lock is free again"


# -- what kubelet was not told of


def test_of_an_earlier_boot_it_is_lost_as_well_and_forgotten_once_kubelet_takes_it_back(
    bench: NodeBench,
) -> None:
    bench.journal.put(bench.entry("a", state=State.INTENT, remade=True, boot_id="before"))
    assert nothing(bench.removal.remove_unfinished(UID))
    assert bench.states() == [State.LOST]
    bench.journal.put(bench.entry("a", state=State.DESTROYING, remade=True, boot_id="before"))
    assert nothing(bench.removal.remove_all(UID))
    assert bench.journal.entries() == ()
