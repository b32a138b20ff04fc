"""Which API servers the probe tells apart, and when a slice that goes is unavailable."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, cast

import pytest

from dra.common.resources import Obj
from dra.gpu.geometry import Occupant, Placement
from dra.gpu.inventory import Gpu, Instance, InstanceState, Inventory
from dra.kube.client import KubeApi
from dra.kube.errors import InvalidError, KubeError
from dra.resourceslices.resourceslices import Features
from kubeletplugin import times
from kubeletplugin.publishing.resourceslices import Unaccounted, probe
from tests.dra.gpus import sliced_gpu
from tests.dra.kube.clocks import FakeClock

INVENTORY = Inventory("node-a", "node-a", "mig.dra.dev")


class Server:
    """Answers a creation as an API server does; nothing but dry runs may be asked for."""

    def __init__(
        self,
        *,
        partitionable: bool,
        taints: bool,
        together: bool,
        binding: bool = True,
        shares: bool = True,
        error: KubeError | None = None,
    ) -> None:
        self.partitionable, self.taints, self.together = partitionable, taints, together
        self.binding, self.shares = binding, shares
        self.error = error

    def create(self, _resource: object, body: Obj, *, dry_run: bool, **_: Any) -> Obj:
        assert dry_run
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        kept = copy.deepcopy(body)
        spec = kept["spec"]
        if not self.partitionable:
            spec.pop("sharedCounters", None)
        for device in spec["devices"]:
            if not self.partitionable:
                del device["consumesCounters"]
            if not self.taints:
                del device["taints"]
            if not self.binding:
                del device["bindingConditions"], device["bindingFailureConditions"]
            if not self.shares:
                del device["allowMultipleAllocations"]
        if self.partitionable and not self.together and "sharedCounters" in spec:
            raise InvalidError("only one of `sharedCounters` or `devices` is allowed", status=422)
        return kept


def features(**server: Any) -> Features | None:
    return probe(cast("KubeApi", Server(**server)), INVENTORY, field_manager="tests")


@pytest.mark.parametrize("taints", [True, False])
@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("binding", [True, False])
@pytest.mark.parametrize("shares", [True, False])
def test_the_layout_is_what_the_server_keeps(
    *, taints: bool, together: bool, binding: bool, shares: bool
) -> None:
    found = features(
        partitionable=True, taints=taints, together=together, binding=binding, shares=shares
    )
    assert found == Features(
        separate=not together, taints=taints, binding=binding, shares=shares and not together
    )


@pytest.mark.parametrize("together", [True, False])
def test_dropped_counters_are_noticed_in_either_layout(*, together: bool) -> None:
    assert features(partitionable=False, taints=True, together=together) is None


def on_gpu(state: InstanceState, *, start: int = 4) -> Instance:
    return Instance(Placement(start, 4), state, profile_id=9)


@pytest.mark.parametrize("state", [InstanceState.RECLAIMING, InstanceState.ORPHAN])
def test_what_goes_is_unavailable_once_it_takes_too_long(state: InstanceState) -> None:
    clock = FakeClock()
    unaccounted = Unaccounted(clock)
    gpu = sliced_gpu(0)
    going = [_with(gpu, on_gpu(state))]
    assert unaccounted.look(going) == {}
    assert unaccounted.due() == times.GOING_SECONDS
    clock.at += times.GOING_SECONDS - 1
    assert unaccounted.look(going) == {}
    assert unaccounted.due() == 1
    clock.at += 1
    assert unaccounted.look(going) == {"GPU-0": (Occupant(Placement(4, 4), 9),)}
    assert unaccounted.due() is None
    assert unaccounted.look([gpu]) == {}
    assert unaccounted.look(going) == {}, "another that goes has its own time"


def test_a_shared_slice_is_unavailable_only_when_all_of_it_goes() -> None:
    clock = FakeClock()
    unaccounted = Unaccounted(clock)
    goes, stays = on_gpu(InstanceState.RECLAIMING), on_gpu(InstanceState.PREPARED)
    for instances, blocked in (((goes, stays), False), ((goes, goes), True)):
        unaccounted.look([_with(sliced_gpu(0), *instances)])
        clock.at += times.GOING_SECONDS
        found = unaccounted.look([_with(sliced_gpu(0), *instances)])
        assert found == ({"GPU-0": (Occupant(Placement(4, 4), 9),)} if blocked else {})


def _with(gpu: Gpu, *instances: Instance) -> Gpu:
    return replace(gpu, instances=instances)
