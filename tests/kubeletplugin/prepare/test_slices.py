"""Slices of entries: found, finished, used again or made, and what is left of a failure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

import sim.nvml
from dra.claims.reasons import NodeReason
from dra.gpu.geometry import Geometry
from kubeletplugin.errors import BusyError, DeviceError, HardwareError, ModeError
from kubeletplugin.gpus.neighbours.other_managers import Conflict
from kubeletplugin.journal.entries import LEAVING, Entry, State
from kubeletplugin.nvml.errors import NotSupportedError, NvmlError, UndeliverableError
from kubeletplugin.nvml.session.session import Session
from tests.kubeletplugin.gpubench import ELSEWHERE, UNKNOWN, GpuBench

T = TypeVar("T")
CREATE_GI = "nvmlDeviceCreateGpuInstanceWithPlacement"
CREATE_CI = "nvmlGpuInstanceCreateComputeInstance"
NOT_SUPPORTED, FUNCTION_NOT_FOUND, INSUFFICIENT_RESOURCES = 3, 13, 23


class InterruptedSession(Session):
    """Calls of which something happens just before, by the function's name."""

    def __init__(self, meanwhile: dict[str, Callable[[], None]]) -> None:
        super().__init__()
        self._meanwhile = meanwhile

    def call(self, function: Callable[..., T], *arguments: Any, gpu: str = "") -> T:
        self._meanwhile.pop(function.__name__, lambda: None)()
        return super().call(function, *arguments, gpu=gpu)


class Bench(GpuBench):
    """One A100, on which slices are made; ``meanwhile`` happens before a call of that name."""

    def __init__(self, folder: Path) -> None:
        self.meanwhile: dict[str, Callable[[], None]] = {}
        super().__init__(folder, session=InterruptedSession(self.meanwhile))

    def ensure(self, entry: Entry) -> Entry:
        return self.slices.ensure(self.unit, entry)

    def made_well(self, entry: Entry) -> None:
        """An entry has its slice, and the journal says so, in every detail."""
        (gi,) = self.machine.gpu(0).gpu_instances
        (ci,) = gi.compute_instances
        assert self.journal.get(entry) == entry
        assert (entry.state, entry.boot_id) == (State.CI_CREATED, "boot")
        assert (entry.gi_id, entry.ci_id, entry.mig_uuid) == (gi.id, ci.id, ci.uuid)
        assert (gi.start, gi.size, gi.profile) == (4, 1, 19)
        assert len(self.marks()) == 2

    def keys(self) -> list[tuple[int, list[int]]]:
        """Every instance there is, by what is never used again."""
        found = self.machine.gpu(0).gpu_instances
        return [(g.key, [c.key for c in g.compute_instances]) for g in found]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    yield Bench(tmp_path)
    sim.nvml.uninstall()


# -- made, finished, found


def test_what_is_not_on_record_is_made(bench: Bench) -> None:
    bench.made_well(bench.ensure(bench.entry("a", boot_id="another")))


def test_what_is_on_record_for_another_gpu_is_made_here(bench: Bench) -> None:
    bench.journal.put(bench.entry("a", state=State.PREPARED, gpu="GPU-other", gi_id=3))
    bench.made_well(bench.ensure(bench.entry("a")))


@pytest.mark.parametrize("state", [s for s in State if s is not State.INTENT])
def test_a_slice_that_is_whole_stays_as_it_is(bench: Bench, state: State) -> None:
    recorded = bench.made("a", state)
    before = bench.keys()
    assert bench.ensure(bench.entry("a")) == recorded
    assert (bench.keys(), bench.journal.entries()) == (before, (recorded,))


def test_an_intent_is_carried_out_whatever_else_its_record_says(bench: Bench) -> None:
    bench.made("a", State.INTENT)
    before = bench.keys()
    bench.made_well(bench.ensure(bench.entry("a")))
    assert bench.keys() != before


@pytest.mark.parametrize("state", [State.GI_CREATED, State.CI_DESTROYED])
def test_a_gpu_instance_without_compute_instance_is_finished(bench: Bench, state: State) -> None:
    recorded = bench.made("a", state, ci_id=None, mig_uuid="")
    bench.destroy_compute_instances(recorded)
    ((before, _),) = bench.keys()
    entry = bench.ensure(bench.entry("a", pool="node-2"))
    bench.made_well(entry)
    assert (bench.keys()[0][0], entry.pool) == (before, "node-2")


def test_a_compute_instance_that_nobody_was_told_of_is_removed_and_made_again(
    bench: Bench,
) -> None:
    bench.made("a", State.GI_CREATED, ci_id=None, mig_uuid="")
    ((gpu_instance, compute_instances),) = bench.keys()
    bench.made_well(bench.ensure(bench.entry("a")))
    ((made, inside),) = bench.keys()
    assert made != gpu_instance
    assert inside != compute_instances


@pytest.mark.parametrize("state", [State.LOST, State.PREPARED, State.GI_CREATED, State.INTENT])
def test_a_slice_that_is_gone_is_made_again_at_its_place(bench: Bench, state: State) -> None:
    recorded = bench.made("a", state, note="why", wiped=True)
    bench.machine.destroy_slice(0, recorded.gi_id or 0)
    entry = bench.ensure(bench.entry("a"))
    bench.made_well(entry)
    assert (entry.note, entry.wiped) == ("", False)


def test_what_another_claim_left_is_removed_before(bench: Bench) -> None:
    bench.made("old", State.LEFTOVER)
    entry = bench.ensure(bench.entry("a"))
    bench.made_well(entry)
    assert bench.journal.entries() == (entry,)


def test_a_gpu_instance_that_another_claim_left_is_used_again(bench: Bench) -> None:
    bench.bare("old")
    ((before, _),) = bench.keys()
    entry = bench.ensure(bench.entry("a"))
    bench.made_well(entry)
    assert (bench.keys()[0][0], bench.journal.entries()) == (before, (entry,))


def test_who_is_in_the_way_stays_and_nothing_is_recorded(bench: Bench) -> None:
    other = bench.made("old", State.PREPARED)
    with pytest.raises(BusyError, match="default/old"):
        bench.ensure(bench.entry("a"))
    assert bench.journal.entries() == (other,)


# -- what fails


def put_back(bench: Bench, *, held: bool) -> tuple[Entry, ...]:
    """The records that are to be there after a failure: a claim that was held is held on."""
    if held:
        bench.journal.put(bench.entry("a", state=State.LOST, gi_id=3, note="why"))
    return bench.journal.entries()


HELD = pytest.mark.parametrize("held", [False, True], ids=["new", "held"])


@HELD
def test_a_profile_that_the_driver_does_not_make_is_offered_no_more(
    bench: Bench,
    held: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    before = put_back(bench, held=held)
    bench.keep(CREATE_GI, NOT_SUPPORTED)
    with pytest.raises(UndeliverableError, match=r"1g\.5gb cannot be had"):
        bench.ensure(bench.entry("a"))
    assert (bench.places(), bench.journal.entries()) == ([], before)
    assert "1g.5gb cannot be had" in bench.unit.struck(19)
    with pytest.raises(DeviceError, match=r"offers no profile 1g\.5gb at 4:1: .*cannot be had"):
        bench.ensure(bench.entry("a"))


@HELD
@pytest.mark.parametrize(
    ("function", "code"),
    [(CREATE_GI, NOT_SUPPORTED), (CREATE_CI, NOT_SUPPORTED), (CREATE_CI, FUNCTION_NOT_FOUND)],
)
def test_where_mig_mode_goes_off_meanwhile_nothing_is_said_of_the_profile(
    bench: Bench,
    held: bool,  # noqa: FBT001 - a parameter of the test
    function: str,
    code: int,
) -> None:
    before = put_back(bench, held=held)
    bench.keep(function, code)
    bench.meanwhile[function] = lambda: bench.machine.set_mig_mode(0, enabled=False)
    with pytest.raises(ModeError, match="MIG mode of gpu-0") as error:
        bench.ensure(bench.entry("a"))
    assert isinstance(error.value.__cause__, NvmlError)
    assert bench.unit.struck(19) == ""
    if function == CREATE_GI:
        assert bench.journal.entries() == before
    else:
        assert bench.states() == [State.GI_CREATED]


@HELD
@pytest.mark.parametrize("state", [None, State.PREPARED, State.LEFTOVER])
def test_an_engine_that_is_taken_is_told_with_all_who_hold_something(
    bench: Bench,
    held: bool,  # noqa: FBT001 - a parameter of the test
    state: State | None,
) -> None:
    if state is not None:
        bench.made("old", state, ELSEWHERE)
    before = put_back(bench, held=held)
    bench.keep(CREATE_GI, INSUFFICIENT_RESOURCES)
    with pytest.raises(HardwareError, match="; on gpu-0 now: ") as error:
        bench.ensure(bench.entry("a"))
    assert "INSUFFICIENT_RESOURCES" in str(error.value)
    assert ("0:1 GPU instance" if state else "no instances") in str(error.value)
    assert error.value.passing is (state in LEAVING)
    assert bench.journal.entries() == before


@pytest.mark.parametrize("function", [CREATE_GI, CREATE_CI])
def test_after_any_other_failure_the_record_says_how_far_it_came(
    bench: Bench, function: str
) -> None:
    bench.keep(function, UNKNOWN)
    with pytest.raises(NvmlError):
        bench.ensure(bench.entry("a", boot_id="another", note="why"))
    (left,) = bench.journal.entries()
    state = State.INTENT if function == CREATE_GI else State.GI_CREATED
    found = [g.id for g in bench.machine.gpu(0).gpu_instances]
    assert (left.state, left.boot_id, left.note) == (state, "boot", "")
    assert [i for i in [left.gi_id] if i is not None] == found
    assert len(bench.marks()) == len(found)
    assert bench.unit.struck(19) == ""
    bench.machine.clear_faults()
    bench.made_well(bench.ensure(bench.entry("a")))


@pytest.mark.parametrize("code", [UNKNOWN, INSUFFICIENT_RESOURCES])
def test_a_slice_that_could_not_be_read_back_is_not_taken_for_refused(
    bench: Bench, code: int
) -> None:
    bench.keep("nvmlGpuInstanceGetInfo", code)
    with pytest.raises(NvmlError):
        bench.ensure(bench.entry("a"))
    assert bench.states() == [State.INTENT]
    bench.machine.clear_faults()
    bench.made_well(bench.ensure(bench.entry("a")))


def test_ids_of_a_slice_that_is_gone_are_recorded_no_more(bench: Bench) -> None:
    recorded = bench.made("a", State.PREPARED)
    bench.machine.destroy_slice(0, recorded.gi_id or 0)
    bench.keep(CREATE_GI, UNKNOWN)
    with pytest.raises(NvmlError):
        bench.ensure(bench.entry("a", gi_id=3, ci_id=4, mig_uuid="MIG-old"))
    (left,) = bench.journal.entries()
    assert (left.gi_id, left.ci_id, left.mig_uuid) == (None, None, "")


def test_a_compute_instance_that_cannot_be_had_is_known_only_with_a_gpu_instance(
    bench: Bench,
) -> None:
    bench.keep(CREATE_CI, NOT_SUPPORTED)
    with pytest.raises(UndeliverableError, match="the driver refused a compute instance"):
        bench.ensure(bench.entry("a"))
    assert "cannot be had" in bench.unit.struck(19)
    assert (bench.slices_now(), bench.states()) == ([(4, 0)], [State.GI_CREATED])


def test_a_profile_that_has_less_than_it_advertises_is_offered_with_that(bench: Bench) -> None:
    card = bench.unit.known.card
    assert card.geometry is not None
    more = tuple(replace(p, multiprocessors=15) for p in card.geometry.profiles)
    bench.unit.set_card(replace(card, geometry=Geometry(more)))
    with pytest.raises(UndeliverableError, match="offered with 14 from now on"):
        bench.ensure(bench.entry("a"))
    geometry = bench.unit.known.geometry
    assert geometry is not None
    offered = geometry.by_id(19)
    assert offered is not None
    assert offered.multiprocessors == 14
    bench.made_well(bench.ensure(bench.entry("a")))


def test_a_gpu_that_does_not_tell_its_mode_is_believed_of_the_profile(bench: Bench) -> None:
    bench.keep(CREATE_GI, NOT_SUPPORTED)
    bench.keep("nvmlDeviceGetMigMode", NOT_SUPPORTED)
    with pytest.raises(UndeliverableError):
        bench.ensure(bench.entry("a"))
    assert "cannot be had" in bench.unit.struck(19)


def test_a_call_that_the_driver_does_not_have_says_nothing_of_the_profile(bench: Bench) -> None:
    bench.keep(CREATE_CI, FUNCTION_NOT_FOUND)
    with pytest.raises(NotSupportedError):
        bench.ensure(bench.entry("a"))
    assert bench.unit.struck(19) == ""
    assert bench.states() == [State.GI_CREATED]


def test_a_gpu_instance_used_again_is_recorded_before_its_compute_instance_is_made(
    bench: Bench,
) -> None:
    left = bench.bare("old")
    bench.keep(CREATE_CI, UNKNOWN)
    with pytest.raises(NvmlError):
        bench.ensure(bench.entry("a"))
    (entry,) = bench.journal.entries()
    assert (entry.claim.name, entry.state, entry.gi_id) == ("a", State.GI_CREATED, left.gi_id)


# -- what the GPU offers


def test_what_is_withheld_is_not_made(bench: Bench) -> None:
    bench.unit.withhold(Conflict(NodeReason.PAUSED, "a pause was asked for"))
    with pytest.raises(DeviceError, match="withheld: a pause was asked for"):
        bench.ensure(bench.entry("a"))


def test_without_mig_mode_nothing_is_made(bench: Bench) -> None:
    bench.unit.set_card(replace(bench.unit.known.card, mig_enabled=False))
    with pytest.raises(ModeError, match="is off"):
        bench.ensure(bench.entry("a"))


NOT_OFFERED: dict[str, dict[str, object]] = {
    "no such profile": {"profile_id": 77},
    "a whole GPU": {"profile_id": None},
    "no such place": {"placement": replace(ELSEWHERE, start=7)},
    "no place": {"placement": None},
}


@pytest.mark.parametrize("case", NOT_OFFERED)
def test_what_the_gpu_does_not_offer_is_not_made(bench: Bench, case: str) -> None:
    entry = replace(bench.entry("a"), **NOT_OFFERED[case])  # type: ignore[arg-type]
    with pytest.raises(DeviceError, match=r"gpu-0 offers no profile 1g\.5gb at [^:]*(:1)?$"):
        bench.ensure(entry)


@pytest.mark.parametrize("geometry", [None, Geometry(())])
def test_without_profiles_nothing_is_made(bench: Bench, geometry: Geometry | None) -> None:
    bench.unit.set_card(replace(bench.unit.known.card, geometry=geometry))
    with pytest.raises(DeviceError, match=r"gpu-0 offers no profile 1g\.5gb at 4:1$"):
        bench.ensure(bench.entry("a"))


def test_what_is_whole_is_found_however_little_the_gpu_offers_now(bench: Bench) -> None:
    recorded = bench.made("a", State.PREPARED)
    bench.unit.set_card(replace(bench.unit.known.card, geometry=None, mig_enabled=False))
    assert bench.ensure(bench.entry("a")) == recorded
