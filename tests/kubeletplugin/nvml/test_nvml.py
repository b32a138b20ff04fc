"""The NVML layer over the simulated library: what is read, what is refused, what is read back."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path

import pynvml
import pytest

from dra.gpu.geometry import Geometry, Profile
from kubeletplugin.nvml import instances as changes
from kubeletplugin.nvml.errors import PermissionDeniedError, ReadBackError
from kubeletplugin.nvml.gpus import Card, discover
from kubeletplugin.nvml.instances import (
    GpuInstance,
    create_compute_instance,
    find_gpu_instance,
    list_compute_instances,
    list_gpu_instances,
)
from kubeletplugin.nvml.session import Session
from sim.nvml.faults import Fault
from sim.nvml.machine import GpuSpec, Machine
from sim.nvml.products import product_names


@pytest.fixture
def product() -> str:
    """Tests of other products have a parameter of that name."""
    return "A100-SXM4-40GB"


@pytest.fixture
def machine(tmp_path: Path, product: str) -> Machine:
    return Machine.create(tmp_path / "hw", [GpuSpec(product)])


@pytest.fixture
def card(session: Session) -> Card:
    [card] = discover(session).cards
    return card


@pytest.fixture
def geometry(card: Card) -> Geometry:
    assert card.geometry is not None
    return card.geometry


def profile(geometry: Geometry, name: str) -> Profile:
    found = geometry.by_name(name)
    assert found is not None
    return found


def make(session: Session, card: Card, wanted: Profile, start: int) -> GpuInstance:
    placement = next(p for p in wanted.placements if p.start == start)
    made = changes.create_gpu_instance(session, card.uuid, profile=wanted, placement=placement)
    create_compute_instance(session, card.uuid, gi_id=made.id, profile=wanted)
    return made


@pytest.mark.parametrize(
    ("product", "code"), list(zip(product_names(), cycle([2, 13, 25]), strict=False))
)
def test_a_driver_that_refuses_the_second_form_of_a_call_is_asked_in_the_first(
    machine: Machine, session: Session, card: Card, product: str, code: int
) -> None:
    refusal = Fault(function="nvml*ProfileInfoV", action="return", code=code, times=0)
    machine.inject(refusal)
    [asked] = discover(session).cards
    assert asked == card
    assert asked.geometry is not None
    assert asked.geometry.profiles
    wanted = asked.geometry.profiles[0]
    make(session, asked, wanted, wanted.placements[0].start)
    machine.inject(Fault(function="nvml*ProfileInfo", action="return", code=999, times=0))
    [asked] = discover(session).cards
    assert "UNKNOWN (999)" in asked.problem, "the first form was asked"


@pytest.mark.parametrize("product", product_names())
def test_every_profile_of_every_product_can_be_made_and_removed_where_nvml_says(
    session: Session, card: Card, geometry: Geometry, product: str
) -> None:
    assert geometry.profiles
    for wanted in geometry.profiles:
        for placement in wanted.placements:
            made = make(session, card, wanted, placement.start)
            present = list_gpu_instances(session, card.uuid, geometry)
            assert present == (GpuInstance(made.id, wanted.id, placement),)
            [compute] = list_compute_instances(session, card.uuid, made.id)
            assert compute.uuid.startswith("MIG-")
            changes.destroy_compute_instances(session, card.uuid, made.id)
            changes.destroy_gpu_instance(session, card.uuid, made.id)
            assert list_gpu_instances(session, card.uuid, geometry) == ()


def test_a_destroy_that_does_nothing_is_not_believed(
    machine: Machine, session: Session, card: Card, geometry: Geometry
) -> None:
    made = make(session, card, profile(geometry, "1g.5gb"), 0)
    for step, function in (
        (changes.destroy_compute_instances, "nvmlComputeInstanceDestroy"),
        (changes.destroy_gpu_instance, "nvmlGpuInstanceDestroy"),
    ):
        machine.inject(Fault(id="n", function=function, action="no-effect"))
        with pytest.raises(ReadBackError, match="is still there"):
            step(session, card.uuid, made.id)
        step(session, card.uuid, made.id)


def test_an_instance_that_can_never_be_read_is_not_taken_for_gone(
    machine: Machine, session: Session, card: Card, geometry: Geometry
) -> None:
    made = make(session, card, profile(geometry, "1g.5gb"), 0)
    machine.inject(not_found("nvmlGpuInstanceGetInfo", times=100))
    with pytest.raises(ReadBackError, match=f"GPU instance {made.id} is there and cannot be read"):
        find_gpu_instance(session, card.uuid, made.id)
    with pytest.raises(ReadBackError, match="one is there and cannot be read"):
        list_gpu_instances(session, card.uuid, geometry)


@pytest.mark.parametrize("function", ["nvmlDeviceGetGpuInstanceById", "nvmlGpuInstanceGetInfo"])
def test_what_one_answer_says_is_gone_is_destroyed_all_the_same(
    machine: Machine, session: Session, card: Card, geometry: Geometry, function: str
) -> None:
    machine.create_slice(0, "1g.5gb", start=0)
    [made] = list_gpu_instances(session, card.uuid, geometry)
    for destroy in (changes.destroy_compute_instances, changes.destroy_gpu_instance):
        machine.inject(not_found(function, times=1))
        destroy(session, card.uuid, made.id)
    assert list_gpu_instances(session, card.uuid, geometry) == ()


def test_compute_instances_that_can_never_be_read_are_not_taken_for_gone(
    machine: Machine, session: Session, card: Card
) -> None:
    made = machine.create_slice(0, "1g.5gb", start=0)
    machine.inject(not_found("nvmlGpuInstanceGetInfo", times=100))
    with pytest.raises(ReadBackError, match="its compute instances cannot be read"):
        changes.destroy_compute_instances(session, card.uuid, made.gpu_instance)


def not_found(function: str, *, times: int) -> Fault:
    code = pynvml.NVML_ERROR_NOT_FOUND
    return Fault(id="n", function=function, action="return", code=code, times=times)


def test_a_slice_that_lands_elsewhere_is_destroyed_again(
    session: Session, card: Card, geometry: Geometry, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = pynvml.nvmlDeviceCreateGpuInstance

    def elsewhere(device: object, profile_id: int, _: object) -> object:
        return create(device, profile_id)

    elsewhere.__name__ = "nvmlDeviceCreateGpuInstanceWithPlacement"
    monkeypatch.setattr(pynvml, "nvmlDeviceCreateGpuInstanceWithPlacement", elsewhere)
    with pytest.raises(ReadBackError, match=r"asked for profile 19 at 0:1, got profile 19 at 6:1"):
        make(session, card, profile(geometry, "1g.5gb"), 0)
    assert list_gpu_instances(session, card.uuid, geometry) == ()


def test_a_gpu_is_used_though_the_driver_does_not_know_its_name(
    machine: Machine, session: Session
) -> None:
    machine.inject(Fault(id="f", function="nvmlDeviceGetName", action="return", code=13))
    [card] = discover(session).cards
    assert (card.product_name, card.reason) == ("", "")
    assert card.geometry is not None


def test_without_privileges_the_error_says_who_may(
    machine: Machine, session: Session, card: Card, geometry: Geometry
) -> None:
    machine.configure(privileged=False)
    with pytest.raises(PermissionDeniedError, match="needs root or CAP_SYS_ADMIN") as caught:
        make(session, card, profile(geometry, "1g.5gb"), 0)
    assert caught.value.gpu == card.uuid
    assert caught.value.code == pynvml.NVML_ERROR_NO_PERMISSION
