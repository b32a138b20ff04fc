"""Initialisation, versions, and finding GPUs."""

from __future__ import annotations

import time
from typing import Any

import pynvml

from sim.nvml.cabi import (
    RefusedError,
    Return,
    address,
    integer,
    pointer_field,
    put_handle,
    put_int,
    put_text,
    put_uint,
    put_ulonglong,
    structure,
    text,
)
from sim.nvml.library import exported
from sim.nvml.session import EventSet, Kind, Session
from sim.nvml.state import MIG_CONFIG_CHANGE, RECOVERY_ACTION_CHANGED, Event, Gpu


@exported("nvmlInit_v2", on_handle=False, needs_init=False)
@exported("nvmlInitWithFlags", on_handle=False, needs_init=False)
def init(session: Session, *_flags: Any) -> None:
    """Initialises; NVML counts references, and no flag changes anything here."""
    session.open()


@exported("nvmlShutdown", on_handle=False)
def shutdown(session: Session) -> None:
    """Undoes one initialisation, once waits for events are over; they never are: a variant."""
    while session.inside and session.store.read().variants.shutdown == "waits":
        time.sleep(_POLL_SECONDS)
    session.close()


@exported("nvmlSystemGetDriverVersion", on_handle=False)
def driver_version(session: Session, buffer: Any, length: Any) -> None:
    """Version of the kernel driver."""
    put_text(buffer, length, session.store.read().driver_version)


@exported("nvmlSystemGetCudaDriverVersion", on_handle=False)
@exported("nvmlSystemGetCudaDriverVersion_v2", on_handle=False)
def cuda_driver_version(session: Session, version: Any) -> None:
    """CUDA version of the driver, as 1000 * major + 10 * minor."""
    put_int(version, session.store.read().cuda_version)


@exported("nvmlDeviceGetCount_v2", on_handle=False)
def device_count(session: Session, count: Any) -> None:
    """Number of GPUs, lost ones included."""
    put_uint(count, len(session.store.read().gpus))


def _give(session: Session, gpu: Gpu, device: Any, *, mig_device: int = 0) -> None:
    if session.is_lost(session.store.read(), gpu):
        raise RefusedError(Return.GPU_IS_LOST)
    session.attach(gpu)
    kind: Kind = "mig-device" if mig_device else "device"
    put_handle(device, session.handle(kind, gpu, mig_device))


@exported("nvmlDeviceGetHandleByIndex_v2", on_handle=False)
def device_by_index(session: Session, index: Any, device: Any) -> None:
    """GPU by index."""
    gpus = session.store.read().gpus
    if not 0 <= integer(index) < len(gpus):
        raise RefusedError(Return.INVALID_ARGUMENT)
    _give(session, gpus[integer(index)], device)


@exported("nvmlDeviceGetHandleByUUID", on_handle=False)
def device_by_uuid(session: Session, uuid: Any, device: Any) -> None:
    """GPU or MIG device by UUID; the search may stop at any GPU that is lost."""
    wanted = text(uuid)
    state = session.store.read()
    lost = any(session.is_lost(state, gpu) for gpu in state.gpus)
    if lost and state.variants.lookup_by_uuid == "any":
        raise RefusedError(Return.GPU_IS_LOST)
    for gpu in state.gpus:
        # "NVML may initialize additional GPUs as it searches for the target GPU" (nvml.h).
        session.attach(gpu)
        if gpu.uuid == wanted:
            _give(session, gpu, device)
            return
        for instance in gpu.gpu_instances:
            for compute in instance.compute_instances:
                if compute.uuid == wanted:
                    _give(session, gpu, device, mig_device=compute.key)
                    return
    raise RefusedError(Return.NOT_FOUND)


@exported("nvmlDeviceGetHandleByPciBusId_v2", on_handle=False)
def device_by_pci_bus_id(session: Session, bus_id: Any, device: Any) -> None:
    """GPU by PCI bus id, with a domain of four or eight digits."""
    domain, _, rest = text(bus_id).lower().partition(":")
    for gpu in session.store.read().gpus:
        if gpu.pci_bus_id.lower() == f"{domain:0>8}:{rest}":
            _give(session, gpu, device)
            return
    raise RefusedError(Return.NOT_FOUND)


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
    """Free an event set, once waits for its events are over (580.159 on H100)."""
    events = _event_set(session, handle)
    while events in session.inside:
        time.sleep(_POLL_SECONDS)
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


@exported("nvmlEventSetWait_v2", on_handle=False)
def wait(session: Session, handle: Any, data: Any, timeout_ms: Any) -> None:
    """Delivers the next event; TIMEOUT without one, GPU_IS_LOST if a GPU of the set is."""
    deadline = time.monotonic() + integer(timeout_ms) / 1000
    events = _event_set(session, handle)
    opening = session.openings
    session.inside.append(events)
    try:
        while (event := _next_event(session, events)) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise RefusedError(Return.TIMEOUT)
            session.waits += 1
            time.sleep(min(left, _POLL_SECONDS))
            while session.references == 0 or session.openings != opening:
                if session.store.read().variants.shutdown != "hang":
                    raise RefusedError(Return.UNINITIALIZED)
                time.sleep(_POLL_SECONDS)
    finally:
        session.inside.remove(events)
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
