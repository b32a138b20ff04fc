"""GPUs for the tests of the model, written out by hand."""

from __future__ import annotations

from dra.geometry import Engines, Geometry, Placement, Profile


def profile(
    name: str,
    profile_id: int,
    *,
    slices: int,
    memory: int,
    starts: list[int],
    size: int,
    **engines: int,
) -> Profile:
    """A profile of an invented or a real GPU; 14 SMs a slice as on an A100."""
    return Profile(
        id=profile_id,
        name=name,
        compute_slices=slices,
        memory_mib=memory,
        multiprocessors=14 * slices,
        placements=tuple(Placement(s, size) for s in starts),
        engines=Engines(**engines),
    )


A100 = Geometry(
    (
        profile("1g.5gb", 19, slices=1, memory=4864, starts=[0, 1, 2, 3, 4, 5, 6], size=1),
        profile(
            "1g.5gb+me",
            20,
            slices=1,
            memory=4864,
            starts=[0, 1, 2, 3, 4, 5, 6],
            size=1,
            decoders=1,
            jpeg_engines=1,
            ofa_engines=1,
        ),
        profile("1g.10gb", 15, slices=1, memory=9856, starts=[0, 2, 4, 6], size=2, decoders=1),
        profile("2g.10gb", 14, slices=2, memory=9856, starts=[0, 2, 4], size=2, decoders=1),
        profile("3g.20gb", 9, slices=3, memory=19968, starts=[0, 4], size=4, decoders=2),
        profile("4g.20gb", 5, slices=4, memory=19968, starts=[0], size=4, decoders=2),
        profile(
            "7g.40gb",
            0,
            slices=7,
            memory=40192,
            starts=[0],
            size=8,
            decoders=5,
            jpeg_engines=1,
            ofa_engines=1,
        ),
    )
)
"""An A100-40GB as its user guide prints it."""

THIRDS = Geometry(
    (
        profile("1x.3gb", 7, slices=1, memory=3000, starts=[0, 3, 6], size=3, encoders=1),
        profile("1x.3gb+gfx", 8, slices=1, memory=3000, starts=[0, 3, 6], size=3, encoders=2),
        profile("3x.9gb", 2, slices=3, memory=9000, starts=[0], size=9, encoders=3),
    )
)
"""A GPU that nobody sells: nine memory slices in steps of three, encoders that bind."""
