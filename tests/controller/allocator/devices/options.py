"""GPUs and wants, for tests of what one GPU could give."""

from __future__ import annotations

from collections.abc import Sequence

from dra.allocator.gpustate import GpuState
from dra.allocator.score import Policy
from dra.allocator.search.constraints import UNCONSTRAINED, Vector, WantType
from dra.allocator.search.options import GpuWants
from dra.cel.offers import Offer, kind_of
from dra.gpu.geometry import EMPTY, Geometry, Usage
from tests.controller.helpers.objects import gpu, inventory

WHOLE = Offer(None)


def gpu_state(geometry: Geometry | None, usage: Usage = EMPTY) -> GpuState:
    """A GPU that is in use so far; one that is not in MIG mode without a geometry."""
    made = gpu(0, mig=False) if geometry is None else gpu(0, geometry=geometry)
    on = inventory("node-a", made)
    state = GpuState(made, on, kind_of(made, on), "")
    state.usage = usage
    return state


def wants(target: Vector, allowed: Sequence[tuple[Offer, ...]], policy: Policy) -> GpuWants:
    types = [WantType((), (), "") for _ in target]
    return GpuWants(types, target, "default", allowed, UNCONSTRAINED, [policy] * len(target))
