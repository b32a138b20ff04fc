"""A slice is what its profile advertises: every profile, every product, whatever a driver makes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pynvml
import pytest
from msgspec.structs import replace

import sim.nvml
from dra.gpu.geometry import Profile
from kubeletplugin.nvml import instances as changes
from kubeletplugin.nvml.errors import NotSupportedError, UndeliverableError
from kubeletplugin.nvml.gpus import discover
from kubeletplugin.nvml.instances import create_compute_instance, list_compute_instances
from kubeletplugin.nvml.session import Session
from sim.nvml.faults import Fault
from sim.nvml.machine import GpuSpec, Machine
from sim.nvml.products import ComputeInstanceProfile, Product, Variants, load_product, product_names

H100 = load_product("H100-80GB-HBM3")
DOUBLE = "1g.20gb"
"""Of the H100: 26 multiprocessors, of which the plain compute instance has 16."""
CREATES = "nvmlGpuInstanceCreateComputeInstance"
Bench = Callable[..., tuple[Machine, Session]]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """A machine with one GPU of a product, and a session that has found it."""

    def build(product: Product | str, variants: Variants | None = None) -> tuple[Machine, Session]:
        machine = Machine.create(tmp_path / "hw", [GpuSpec(product)], variants=variants)
        sim.nvml.install(machine.directory)
        session = Session()
        session.open()
        discover(session)
        return machine, session

    return build


def profiles(session: Session) -> tuple[Profile, ...]:
    [card] = discover(session).cards
    assert card.geometry is not None
    return card.geometry.profiles


def double(session: Session) -> Profile:
    return next(p for p in profiles(session) if p.name == DOUBLE)


def make(session: Session, gpu: str, profile: Profile) -> tuple[int, int]:
    """Multiprocessors that a new slice has and, until it is removed, its GPU instance's id."""
    placement = profile.placements[0]
    gi = changes.create_gpu_instance(session, gpu, profile=profile, placement=placement)
    try:
        made = create_compute_instance(session, gpu, gi_id=gi.id, profile=profile)
        [found] = list_compute_instances(session, gpu, gi.id)
        assert (found.id, found.uuid) == (made.id, made.uuid)
    except BaseException:
        assert list_compute_instances(session, gpu, gi.id) == (), "nothing is left"
        raise
    else:
        changes.destroy_compute_instances(session, gpu, gi.id)
    finally:
        changes.destroy_gpu_instance(session, gpu, gi.id)
    return made.multiprocessors, made.memory_mib


def altered(
    product: Product,
    profile: str,
    *,
    multiprocessors: int | None = None,
    keep: Callable[[ComputeInstanceProfile], bool] = lambda _: True,
) -> Product:
    """A product, one of whose profiles advertises another number, or has fewer inside."""
    changed = [
        replace(
            p,
            multiprocessors=multiprocessors or p.multiprocessors,
            ci_profiles=tuple(c for c in p.ci_profiles if keep(c)),
        )
        if p.name == profile
        else p
        for p in product.gi_profiles
    ]
    return replace(product, gi_profiles=tuple(changed))


def created(machine: Machine) -> list[int]:
    return [call.code for call in machine.mutations() if call.function == CREATES]


@pytest.mark.parametrize(
    ("product", "full_compute"),
    [*((name, "refused") for name in product_names()), ("H100-80GB-HBM3", "product")],
)
def test_every_profile_delivers_what_it_advertises_or_is_refused_in_words(
    bench: Bench, product: str, full_compute: Literal["product", "refused"]
) -> None:
    machine, session = bench(product, Variants(full_compute=full_compute))
    gpu = machine.gpu(0).uuid
    needs_another = {
        p.name
        for p in machine.product(0).gi_profiles
        if p.multiprocessors
        not in {c.multiprocessors for c in p.ci_profiles if c.enum < 7 and c.creatable}
    }
    # As NVIDIA's documents have it: from Hopper on, and only with double memory.
    assert len(needs_another) <= 1
    for profile in profiles(session):
        if full_compute == "refused" and profile.name in needs_another:
            with pytest.raises(UndeliverableError, match="cannot be had as it is advertised"):
                make(session, gpu, profile)
            continue
        multiprocessors, memory = make(session, gpu, profile)
        assert multiprocessors == profile.multiprocessors
        assert memory >= profile.memory_mib * 0.9


def test_what_the_driver_reports_and_refuses_is_passed_over_for_one_that_has_enough(
    bench: Bench,
) -> None:
    # As A100 does: the profile advertises what the plain one has.
    machine, session = bench(
        altered(H100, DOUBLE, multiprocessors=16), Variants(full_compute="refused")
    )
    assert make(session, machine.gpu(0).uuid, double(session))[0] == 16
    assert created(machine) == [3, 0]


def test_a_gpu_instance_without_any_full_compute_instance_is_undeliverable(bench: Bench) -> None:
    machine, session = bench(altered(H100, DOUBLE, keep=lambda _: False))
    with pytest.raises(UndeliverableError, match="reports no compute instance of 1 slices"):
        make(session, machine.gpu(0).uuid, double(session))


@pytest.mark.parametrize("shortage", [("multiprocessorCount", 0.5), ("memorySizeMB", 0.8)])
def test_a_slice_with_less_than_its_profile_advertises_is_destroyed_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, shortage: tuple[str, float]
) -> None:
    field, share = shortage
    real = pynvml.nvmlDeviceGetAttributes_v2

    def less(device: Any) -> Any:
        attributes = real(device)
        setattr(attributes, field, int(getattr(attributes, field) * share))
        return attributes

    machine, session = bench("A100-SXM4-40GB")
    monkeypatch.setattr(pynvml, "nvmlDeviceGetAttributes_v2", less)
    wanted = next(p for p in profiles(session) if p.name == "2g.10gb")
    with pytest.raises(UndeliverableError, match=r"advertises 28 .* 9856 MiB, and the slice had"):
        make(session, machine.gpu(0).uuid, wanted)


@pytest.mark.parametrize(("function", "code"), [("nvmlDeviceGetAttributes*", 3), (CREATES, 13)])
def test_what_is_not_supported_elsewhere_says_nothing_of_the_profile(
    bench: Bench, function: str, code: int
) -> None:
    machine, session = bench(H100)
    machine.inject(Fault(id="no", function=function, action="return", code=code))
    wanted = double(session)
    gpu = machine.gpu(0).uuid
    gi = changes.create_gpu_instance(session, gpu, profile=wanted, placement=wanted.placements[0])
    with pytest.raises(NotSupportedError):
        create_compute_instance(session, gpu, gi_id=gi.id, profile=wanted)
