"""GPUs for the tests of the model, written out by hand."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from dra.gpu.geometry import Engines, Geometry, Placement, Profile
from dra.gpu.inventory import Gpu, GpuFacts, Inventory
from sim.nvml.products import load_product


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


def product_geometry(product: str) -> Geometry:
    """All profiles of one of the simulator's products, as the plugin reads them."""
    return Geometry(
        tuple(
            Profile(
                id=p.id,
                name=p.name,
                compute_slices=p.slice_count,
                memory_mib=p.memory_mib,
                multiprocessors=p.multiprocessors,
                placements=tuple(Placement(start, p.size) for start in p.starts),
                engines=Engines(p.copy_engines, p.decoders, p.encoders, p.jpeg, p.ofa),
            )
            for p in load_product(product).gi_profiles
        )
    )


def sliced_gpu(minor: int, geometry: Geometry = A100) -> Gpu:
    """A GPU in MIG mode."""
    return Gpu(
        minor=minor,
        uuid=f"GPU-{minor}",
        product_name="NVIDIA A100-SXM4-40GB",
        memory_mib=40960,
        mig_enabled=True,
        mig_pending=True,
        geometry=geometry,
    )


def node_of(*gpus: Gpu, name: str = "node-a") -> Inventory:
    """A node that is ready."""
    return Inventory(name, name, "mig.dra.dev", gpus, driver_version="570.86.10")


def facts_to_tell(gpu: Gpu) -> dict[str, Any]:
    """A value of each fact that ``gpu`` lacks, whichever facts there are."""
    known = {f.name: getattr(gpu, f.name) for f in fields(GpuFacts)}
    return {name: type(value)("7") for name, value in known.items() if not value}
