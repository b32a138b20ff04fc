"""Slices of entries: found, finished, used again or made, of what the GPU offers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dra.gpu.geometry import Geometry, Placement
from kubeletplugin.errors import DeviceError, HardwareError, ModeError
from kubeletplugin.journal.entries import LEAVING, Entry, State
from kubeletplugin.nvml.errors import NotSupportedError, NvmlError
from tests.kubeletplugin.claims.slices.slicebench import CREATE_CI, CREATE_GI, Bench
from tests.kubeletplugin.helpers.gpubench import ELSEWHERE, UNKNOWN


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


NOT_OFFERED: dict[str, dict[str, object]] = {
    "no such profile": {"profile_id": 77},
    "a whole GPU": {"profile_id": None},
    "no such place": {"placement": Placement(7, 1)},
    "no place": {"placement": None},
}


@pytest.mark.parametrize("case", NOT_OFFERED)
def test_what_the_gpu_does_not_offer_is_not_made(bench: Bench, case: str) -> None:
    entry = replace(bench.entry("a"), **NOT_OFFERED[case])  # type: ignore[arg-type]
    with pytest.raises(DeviceError, match=r"gpu-0 offers no profile 1g\.5gb at [^:]*(:1)?$"):
        bench.ensure(entry)


# -- failures on the way to a slice: what is recorded, and said of the profile from then on


NOT_SUPPORTED, FUNCTION_NOT_FOUND, INSUFFICIENT_RESOURCES = 3, 13, 23


def put_back(bench: Bench, *, held: bool) -> tuple[Entry, ...]:
    """The records that are to be there after a failure: a claim that was held is held on."""
    if held:
        bench.journal.put(bench.entry("a", state=State.LOST, gi_id=3, note="why"))
    return bench.journal.entries()


HELD = pytest.mark.parametrize("held", [False, True], ids=["new", "held"])


@pytest.mark.parametrize("state", [None, State.PREPARED])
def test_in_use_at_the_first_instance_of_a_gpu_has_its_own_words(
    bench: Bench, state: State | None
) -> None:
    if state is not None:
        bench.made("old", state, ELSEWHERE)
    bench.keep(CREATE_GI)
    with pytest.raises(HardwareError, match=r"IN_USE.*; held by nv-hostengine \(7\)") as error:
        bench.ensure(bench.entry("a"))
    assert ("its first one" in str(error.value)) is (state is None)
    assert error.value.passing
    assert "a" not in {e.claim.name for e in bench.journal.entries()}


@HELD
def test_a_profile_that_the_driver_does_not_make_is_offered_no_more(
    bench: Bench, *, held: bool
) -> None:
    before = put_back(bench, held=held)
    bench.keep(CREATE_GI, NOT_SUPPORTED)
    with pytest.raises(HardwareError, match=r"1g\.5gb cannot be had") as refused:
        bench.ensure(bench.entry("a"))
    assert (bench.places(), bench.journal.entries()) == ([], before)
    assert "1g.5gb cannot be had" in bench.unit.struck(19)
    no_profile = r"offers no profile 1g\.5gb at 4:1: .*cannot be had"
    with pytest.raises(DeviceError, match=no_profile) as waiting:
        bench.ensure(bench.entry("a"))
    assert refused.value.passing, "one refusal may be a mistake"
    assert waiting.value.passing
    bench.unit.strike(19, "cannot be had")
    with pytest.raises(DeviceError, match=no_profile) as again:
        bench.ensure(bench.entry("a"))
    assert not again.value.passing


@HELD
@pytest.mark.parametrize(
    ("function", "code"),
    [(CREATE_GI, NOT_SUPPORTED), (CREATE_CI, NOT_SUPPORTED), (CREATE_CI, FUNCTION_NOT_FOUND)],
)
def test_where_mig_mode_goes_off_meanwhile_nothing_is_said_of_the_profile(
    bench: Bench, *, held: bool, function: str, code: int
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
    bench: Bench, *, held: bool, state: State | None
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


def test_a_profile_that_has_less_than_it_advertises_is_offered_with_that(bench: Bench) -> None:
    card = bench.unit.card
    assert card.geometry is not None
    more = tuple(replace(p, multiprocessors=15) for p in card.geometry.profiles)
    bench.unit.card = replace(card, geometry=Geometry(more))
    with pytest.raises(HardwareError, match="offered with 14 from now on"):
        bench.ensure(bench.entry("a"))
    geometry = bench.unit.geometry
    assert geometry is not None
    offered = geometry.by_id(19)
    assert offered is not None
    assert offered.multiprocessors == 14
    bench.made_well(bench.ensure(bench.entry("a")))


def test_a_gpu_that_does_not_tell_its_mode_is_believed_of_the_profile(bench: Bench) -> None:
    bench.keep(CREATE_GI, NOT_SUPPORTED)
    bench.keep("nvmlDeviceGetMigMode", NOT_SUPPORTED)
    with pytest.raises(HardwareError):
        bench.ensure(bench.entry("a"))
    assert "cannot be had" in bench.unit.struck(19)


def test_a_call_that_the_driver_does_not_have_says_nothing_of_the_profile(bench: Bench) -> None:
    bench.keep(CREATE_CI, FUNCTION_NOT_FOUND)
    with pytest.raises(NotSupportedError):
        bench.ensure(bench.entry("a"))
    assert bench.unit.struck(19) == ""
    assert bench.states() == [State.GI_CREATED]
