"""Event sets. Events are registered on whole GPUs; those of a MIG device name its instances."""

import time
from typing import Any

import pynvml

from sim.nvml.border.cabi import (
    address,
    integer,
    pointer_field,
    put_handle,
    put_ulonglong,
    structure,
)
from sim.nvml.border.library import exported
from sim.nvml.border.session import EventSet, Session
from sim.nvml.codes import RefusedError, Return
from sim.nvml.state import MIG_CONFIG_CHANGE, RECOVERY_ACTION_CHANGED, Event

_ALWAYS = 0x1 | 0x2 | 0x8 | 0x10
"""ECC errors of one and two bits, critical XIDs, clock changes."""

_POLL_SECONDS = 0.02


def _event_set(session: Session, handle: Any) -> EventSet:
    found = session.event_sets.get(address(handle))
    if found is None:
        raise RefusedError(Return.INVALID_ARGUMENT)
    return found


def _supported(session: Session) -> int:
    variants = session.store.read().variants
    config = MIG_CONFIG_CHANGE if variants.config_events == "delivered" else 0
    return (
        _ALWAYS | config | (RECOVERY_ACTION_CHANGED if variants.recovery_action == "event" else 0)
    )


@exported("nvmlEventSetCreate", on_handle=False)
def create(session: Session, handle: Any) -> None:
    """Creates an empty event set; it delivers what happens from now on."""
    where = session.new_address()
    session.event_sets[where] = EventSet(last=session.store.read().next_event - 1)
    put_handle(handle, where)


@exported("nvmlEventSetFree", on_handle=False)
def free(session: Session, handle: Any) -> None:
    """Free an event set."""
    _event_set(session, handle)
    del session.event_sets[address(handle)]


@exported("nvmlDeviceGetSupportedEventTypes")
def supported_types(session: Session, device: Any, types: Any) -> None:
    """Mask of the event types that the GPU can deliver."""
    session.device(device)
    put_ulonglong(types, _supported(session))


@exported("nvmlDeviceRegisterEvents")
def register(session: Session, device: Any, types: Any, handle: Any) -> None:
    """Adds a GPU to the set; NOT_SUPPORTED for a MIG device or a type it cannot deliver."""
    if session.target(device, "device", "mig-device").kind != "device":
        raise RefusedError(Return.NOT_SUPPORTED)
    if integer(types) & ~_supported(session):
        raise RefusedError(Return.NOT_SUPPORTED)
    gpu, _ = session.device(device)
    masks = _event_set(session, handle).masks
    masks[gpu.uuid] = masks.get(gpu.uuid, 0) | integer(types)


def _next_event(session: Session, events: EventSet) -> Event | None:
    state = session.store.read()
    for event in state.events:
        if event.sequence > events.last and events.masks.get(event.gpu, 0) & event.type:
            return event
    if any(gpu.uuid in events.masks and session.is_lost(state, gpu) for gpu in state.gpus):
        raise RefusedError(Return.GPU_IS_LOST)
    return None


def _after_shutdown(session: Session) -> None:
    """Answer to a wait under which the library was shut down."""
    while session.store.read().variants.shutdown == "hang":
        time.sleep(_POLL_SECONDS)
    raise RefusedError(Return.UNINITIALIZED)


@exported("nvmlEventSetWait_v2", on_handle=False)
def wait(session: Session, handle: Any, data: Any, timeout_ms: Any) -> None:
    """Delivers the next event; TIMEOUT without one, GPU_IS_LOST if a GPU of the set is."""
    deadline = time.monotonic() + integer(timeout_ms) / 1000
    events = _event_set(session, handle)
    opening = session.openings
    while (event := _next_event(session, events)) is None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise RefusedError(Return.TIMEOUT)
        session.waits += 1
        time.sleep(min(left, _POLL_SECONDS))
        if session.references == 0 or session.openings != opening:
            _after_shutdown(session)
    events.last = event.sequence
    gpu = session.store.read().gpu(event.gpu)
    if gpu is None:
        raise RefusedError(Return.GPU_IS_LOST)
    filled = structure(data, pynvml.c_nvmlEventData_t)
    filled.device = pointer_field(session.handle("device", gpu), pynvml.c_nvmlDevice_t)
    filled.eventType = event.type
    filled.eventData = event.data
    filled.gpuInstanceId = event.gpu_instance
    filled.computeInstanceId = event.compute_instance
