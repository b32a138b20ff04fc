from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra.gpu.geometry import Geometry, Placement, Profile
from dra.gpu.inventory import ClaimRef, Gpu, Instance, InstanceState, Inventory
from dra.gpu.names import (
    DeviceNameError,
    class_name,
    counter_set_name,
    extended_resource_name,
    mig_device,
    parse_device,
)
from dra.gpu.placement_map import draw


@pytest.mark.parametrize(
    ("profile", "profile_id", "start", "expected"),
    [
        ("1g.5gb", 19, 4, "gpu-0-mig-1g5gb-19-4"),
        ("1g.5gb+me", 20, 0, "gpu-0-mig-1g5gb-me-20-0"),
        ("1g.24gb+me.all", 65, 3, "gpu-0-mig-1g24gb-meall-65-3"),
        ("1g.24gb-me", 67, 9, "gpu-0-mig-1g24gb-me-67-9"),
    ],
)
def test_device_names_are_those_that_nvidias_driver_gives(
    profile: str, profile_id: int, start: int, expected: str
) -> None:
    assert str(mig_device(0, profile, profile_id=profile_id, start=start)) == expected


@pytest.mark.parametrize(
    "name",
    [
        "",
        "gpu-",
        "gpu-00",
        "gpu--1",
        "gpu-0-mig-1g.5gb-19-4",
        "gpu-0-mig-1g5gb-19",
        "gpu-0-mig-1g5gb-019-4",
        "gpu-0-mig--19-4",
        "gpu-0-mig-1g5gb-19-4-shared",
        "gpu-0-share",
        "gpu-0-mig-1g5gb-19-4\n",
        "gpu-0-mig-1G5GB-19-4",
        "../gpu-0",
        "gpu-" + "9" * 5000,
    ],
)
def test_any_other_name_is_refused_with_both_forms_in_the_text(name: str) -> None:
    with pytest.raises(DeviceNameError, match=re.escape("gpu-<minor> nor gpu-<minor>-mig-")) as e:
        parse_device(name)
    assert len(str(e.value)) < 250


@given(
    minor=st.integers(0, 99999),
    profile=st.builds(
        "{}g.{}gb{}".format,
        st.integers(1, 9),
        st.lists(st.sampled_from("0123456789"), min_size=1, max_size=3).map("".join),
        st.sampled_from(["", *(f"{sign}{m}" for sign in "+-" for m in ("me", "gfx", "me.all"))]),
    ),
    profile_id=st.integers(0, 99999),
    start=st.integers(0, 999),
    shared=st.booleans(),
)
def test_names_are_dns_labels_and_round_trip(
    minor: int, profile: str, profile_id: int, start: int, *, shared: bool
) -> None:
    device = mig_device(minor, profile, profile_id=profile_id, start=start, shared=shared)
    name = str(device)
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name)
    assert parse_device(name) == device
    assert device.gpu == f"gpu-{minor}"


def test_class_and_extended_resource_follow_the_device_plugins_spelling() -> None:
    assert class_name("1g.5gb") == "mig-1g.5gb"
    assert class_name("1g.5gb+me") == "mig-1g.5gb.me"
    assert extended_resource_name("1g.5gb+me") == "nvidia.com/mig-1g.5gb.me"
    assert counter_set_name(3) == "gpu-3-counter-set"


# -- the drawing of a node's GPUs


_GEOMETRY = Geometry(
    (
        Profile(19, "1g.5gb", 1, 4864, 14, tuple(Placement(n, 1) for n in range(7))),
        Profile(9, "3g.20gb", 3, 19968, 42, (Placement(0, 4), Placement(4, 4))),
    )
)


_CLAIM = ClaimRef("default", "trainer-gpu-x7f", "uid")


def _inventory(*instances: Instance, unavailable: str = "") -> Inventory:
    gpu = Gpu(
        minor=0,
        uuid="GPU-0",
        product_name="NVIDIA A100-SXM4-40GB",
        geometry=_GEOMETRY,
        instances=instances,
        unavailable=unavailable,
    )
    return Inventory(node="node-1", pool="node-1", driver="mig.dra.dev", gpus=(gpu,))


def _held(start: int, size: int, state: InstanceState = InstanceState.PREPARED) -> Instance:
    profile_id, profile = (19, "1g.5gb") if size == 1 else (9, "3g.20gb")
    return Instance(Placement(start, size), state, profile_id, profile, claim=_CLAIM)


def test_an_empty_gpu_is_all_free() -> None:
    lines = draw(_inventory()).splitlines()
    assert lines[1] == "gpu-0 │" + "       ·" * 7 + "       │"


def test_text_that_does_not_fit_is_cut_in_its_middle() -> None:
    assert "│tra…x7f│" in draw(_inventory(_held(0, 1)))


def test_a_gpu_that_takes_no_slices_says_why() -> None:
    assert (
        draw(_inventory(unavailable="MIG mode is off"))
        .splitlines()[1]
        .endswith("│ MIG mode is off")
    )
    bare = Inventory(
        node="n", pool="n", driver="d", gpus=(Gpu(minor=3, uuid="G", unavailable="no MIG here"),)
    )
    assert draw(bare) == "n\ngpu-3 │ no MIG here"
