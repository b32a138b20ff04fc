"""The drawing of a node's GPUs."""

from __future__ import annotations

from dra.gpu.geometry import Geometry, Placement, Profile
from dra.gpu.inventory import ClaimRef, Gpu, Instance, InstanceState, Inventory
from dra.gpu.placement_map import Style, draw

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


def test_instances_stand_where_they_are_and_free_slices_are_told_apart() -> None:
    drawn = draw(
        _inventory(_held(4, 4), _held(1, 1)), owner=lambda claim: claim.name.partition("-")[0]
    )
    assert drawn.splitlines() == [
        "node-1 0       1       2       3       4       5       6       7        A100-SXM4-40GB",
        "gpu-0 │       │1g.5gb │       ·       │3g.20gb                        │",
        "      │       │trainer│       ·       │trainer                        │",
    ]


def test_an_empty_gpu_is_all_free() -> None:
    lines = draw(_inventory()).splitlines()
    assert lines[1] == "gpu-0 │" + "       ·" * 7 + "       │"


def test_text_that_does_not_fit_is_cut_in_its_middle() -> None:
    assert "│tra…x7f│" in draw(_inventory(_held(0, 1)))


def test_an_instance_that_is_not_simply_in_use_shows_its_state() -> None:
    drawn = draw(_inventory(_held(0, 4, InstanceState.RECLAIMING)))
    assert "reclaiming" in drawn
    assert "trainer" not in drawn


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


def test_colour_and_characters_follow_the_style() -> None:
    inventory = _inventory(_held(0, 1))
    assert "\x1b[" not in draw(inventory)
    assert "\x1b[30;48;5;114m1g.5gb \x1b[0m" in draw(inventory, style=Style(color=True))
    assert draw(inventory, style=Style(ascii_only=True)).isascii()
