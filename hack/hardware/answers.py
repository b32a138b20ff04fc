"""NVML's answers about profiles, beside the fixture of the product, and how long calls take."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import pynvml

from kubeletplugin.check.report import Stopwatch
from kubeletplugin.nvml.errors import NvmlError
from kubeletplugin.nvml.events import GpuEvents
from kubeletplugin.nvml.gpus import discover, mig_mode, profile_name, read_placements, text
from kubeletplugin.nvml.instances import compute_profiles, gpu_instance_handles
from kubeletplugin.nvml.session import Session
from sim.nvml.products import GpuInstanceProfile, Product, load_product, product_names

_FIELDS = {
    "id": "id",
    "isP2pSupported": "p2p",
    "sliceCount": "slice_count",
    "instanceCount": "instance_count",
    "multiprocessorCount": "multiprocessors",
    "copyEngineCount": "copy_engines",
    "decoderCount": "decoders",
    "encoderCount": "encoders",
    "jpegCount": "jpeg",
    "ofaCount": "ofa",
    "memorySizeMB": "memory_mib",
}
"""Of nvmlGpuInstanceProfileInfo_v2_t, and of the fixtures' GpuInstanceProfile."""
_LOOKS = 20


def profiles() -> dict[str, Any]:
    """By GPU: MIG mode, profiles with their placements, and where the fixture says otherwise."""
    with _session(Stopwatch()) as session:
        return {handle.uuid: _of_gpu(session, handle.uuid) for handle in _handles(session)}


def times() -> dict[str, Any]:
    """Milliseconds of the calls of looks at all GPUs, and of event sets, taken and freed."""
    watch = Stopwatch()
    with _session(watch) as session:
        for _ in range(_LOOKS):
            cards = discover(session).cards
        told = {c.uuid: str(_tried(partial(GpuEvents(session, c.uuid).next, 0.1))) for c in cards}
    calls = {name: [t.calls, t.min, t.median, t.max] for name, t in watch.times().items()}
    return {"calls (number, least, median, most)": calls, "event": told}


def of_instances() -> list[dict[str, Any]]:
    """Compute-instance profiles of each GPU instance that is there."""
    found: list[dict[str, Any]] = []
    with _session(Stopwatch()) as session:
        for gpu in (handle.uuid for handle in _handles(session)):
            device = session.device(gpu)
            for _, info in _asked(session, device, gpu):
                for gi in gpu_instance_handles(session, device, info.id, gpu=gpu):
                    compute = _tried(partial(_compute, session, gi, gpu=gpu))
                    found.append({"gpu": gpu, "of": info.id, "compute": compute})
    return found


@contextmanager
def _session(watch: Stopwatch) -> Iterator[Session]:
    session = Session(seconds=10.0, on_call=watch)
    session.open()
    with closing(session):
        yield session


def _handles(session: Session) -> Iterator[Any]:
    for index in range(session.call(pynvml.nvmlDeviceGetCount)):
        yield session.take(index)


def _of_gpu(session: Session, gpu: str) -> dict[str, Any]:
    device = session.device(gpu)
    name = text(_tried(lambda: session.call(pynvml.nvmlDeviceGetName, device, gpu=gpu)))
    seen = {
        enum: _seen(session, device, info, gpu=gpu) for enum, info in _asked(session, device, gpu)
    }
    fixture = next((p for p in map(load_product, product_names()) if p.name == name), None)
    return {
        "name": name,
        "mig": _tried(lambda: mig_mode(session, gpu)),
        "profiles": {str(enum): row for enum, row in seen.items()},
        "fixture": fixture.product if fixture else "none has this name",
        "other": sorted(_other(seen, fixture)) if fixture else [],
    }


def _asked(session: Session, device: Any, gpu: str) -> Iterator[tuple[int, Any]]:
    """NVML's enum and answer of each GPU-instance profile that it does not refuse."""
    ask = pynvml.nvmlDeviceGetGpuInstanceProfileInfo
    for enum in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        answer = _tried(partial(session.call, ask, device, enum, gpu=gpu))
        if not isinstance(answer, str):
            yield enum, answer


def _seen(session: Session, device: Any, info: Any, *, gpu: str) -> dict[str, Any]:
    row: dict[str, Any] = {own: int(getattr(info, field)) for field, own in _FIELDS.items()}
    row["name"] = profile_name(info)
    read = partial(read_placements, session, device, info.id, gpu=gpu)
    row["placements"] = _tried(lambda: sorted([each.start, each.size] for each in read()))
    return row


def _compute(session: Session, gi: Any, *, gpu: str) -> dict[int, dict[str, int]]:
    fields = ("id", "sliceCount", "instanceCount", "multiprocessorCount")
    infos = compute_profiles(session, gi, gpu=gpu)
    return {enum: {name: int(getattr(info, name)) for name in fields} for enum, info in infos}


def _other(seen: Mapping[int, Mapping[str, Any]], fixture: Product) -> Iterator[str]:
    """A sentence for each answer of NVML that the fixture has otherwise."""
    known: dict[int, GpuInstanceProfile] = {p.enum: p for p in fixture.gi_profiles}
    for enum in known.keys() - seen.keys():
        yield f"enum {enum} ({known[enum].name}): not answered"
    for enum, row in seen.items():
        profile = known.get(enum)
        if profile is None:
            yield f"enum {enum} ({row['name']}): not in the fixture"
            continue
        wanted = {own: int(getattr(profile, own)) for own in _FIELDS.values()} | {
            "name": profile.name,
            "placements": sorted([start, profile.size] for start in profile.starts),
        }
        for key, value in wanted.items():
            if row[key] != value:
                yield f"enum {enum} ({profile.name}): {key} is {row[key]}, in the fixture {value}"


def _tried(ask: Callable[[], Any]) -> Any:
    """An answer, or the text of NVML's refusal."""
    try:
        return ask()
    except NvmlError as error:
        return str(error)
