"""Claims and pods of the shape of NVIDIA's samples, composed from ``demo/specs/quickstart``.

Of its DRA driver, May 2026: the ``v1`` folder, and ``tests/bats/specs`` for ``mig-*``.
"""

from __future__ import annotations

from dataclasses import dataclass

from dra.common.resources import Obj

GPU, MIG = "gpu.nvidia.com", "mig.nvidia.com"
_OWN = "device.attributes['gpu.nvidia.com']"
_EVEN = " || ".join(f"{_OWN}.index == {number}" for number in (0, 2, 4, 6))
_A100 = f"{_OWN}.productName.lowerAscii().matches('^.*a100.*$')"
_TURNS: Obj = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
_CLIENTS: Obj = {
    "strategy": "MPS",
    "mpsConfig": {"defaultActiveThreadPercentage": 50, "defaultPinnedDeviceMemoryLimit": "10Gi"},
}

Container = tuple[tuple[str, str], ...]
"""Uses of claims by a container: each the pod's name of one, and a request or an empty string."""


@dataclass(frozen=True, slots=True)
class Sample:
    """``pods`` alike, whose ``claims`` are made from a template each, or are one that all name.

    ``given`` are the devices of all of them: whole GPUs by name, slices by profile. They are given
    on a node of ``gpus`` whole GPUs, or of one in slices.
    """

    devices: Obj
    given: tuple[str, ...]
    containers: tuple[Container, ...] = ((("gpu", ""),),)
    claims: tuple[str, ...] = ("gpu",)
    pods: int = 1
    shared: bool = False

    @property
    def whole(self) -> bool:
        """True if it asks for whole GPUs."""
        return self.given[0].startswith("gpu-")


def _request(name: str, device_class: str, selector: str = "", count: int = 1) -> Obj:
    exactly: Obj = {"deviceClassName": device_class, "count": count}
    if selector:
        exactly["selectors"] = [{"cel": {"expression": selector}}]
    return {"name": name, "exactly": exactly}


def _config(request: str, sharing: Obj, *, kind: str = "GpuConfig") -> Obj:
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind, "sharing": sharing}
    opaque = {"driver": GPU, "parameters": parameters}
    return {"requests": [request], "opaque": opaque}


def _devices(*requests: Obj, **more: object) -> Obj:
    return {"requests": [*requests], **more}


def _each(name: str, *requests: str) -> tuple[Container, ...]:
    return tuple(((name, request),) for request in requests)


_SLICES = {"mig-1g-0": "1g.5gb", "mig-1g-1": "1g.5gb", "mig-2g": "2g.10gb", "mig-3g": "3g.20gb"}
_ONE = _devices(_request("gpu", GPU))

_SM = "device.capacity['gpu.nvidia.com'].multiprocessors"
_LARGE = "device.capacity['gpu.nvidia.com'].memory.isGreaterThan(quantity('10Gi'))"
_BOTH = ("gpu-0", "gpu-1")

SAMPLES = {
    "gpu-test1": Sample(_ONE, _BOTH, pods=2),
    "gpu-test2": Sample(_ONE, ("gpu-0",), _each("gpu", "", "")),
    "gpu-test3": Sample(_ONE, ("gpu-0",), pods=2, shared=True),
    "gpu-test4": Sample(
        _devices(
            *(_request(n, MIG, f"{_OWN}.profile == '{p}'") for n, p in _SLICES.items()),
            constraints=[{"requests": [], "matchAttribute": "gpu.nvidia.com/parentUUID"}],
        ),
        tuple(_SLICES.values()),
        _each("gpu", *_SLICES),
    ),
    "gpu-test5": Sample(
        _devices(
            _request("ts-gpu", GPU),
            _request("mps-gpu", GPU),
            config=[_config("ts-gpu", _TURNS), _config("mps-gpu", _CLIENTS)],
        ),
        _BOTH,
        _each("gpu", "ts-gpu", "ts-gpu", "mps-gpu", "mps-gpu"),
    ),
    "gpu-test6": Sample(
        _devices(_request("gpu", GPU, f"{_A100}\n&&\n({_EVEN})"), config=[_config("gpu", _TURNS)]),
        ("gpu-0", "gpu-2", "gpu-4", "gpu-6"),
        pods=4,
    ),
    "gpu-test7": Sample(_ONE, _BOTH, _each("gpu", "") + _each("gpu1", ""), ("gpu", "gpu1")),
    "gpu-test8": Sample(_devices(_request("gpu", GPU, count=2)), _BOTH),
    "gpu-test-mps": Sample(
        _devices(_request("mps-gpu", GPU), config=[_config("mps-gpu", _CLIENTS)]),
        ("gpu-0",),
        _each("gpu", "mps-gpu", "mps-gpu"),
    ),
    "gpu-anymig": Sample(_devices(_request("anymig", MIG)), ("1g.5gb",)),
    "gpu-multiple-mig": Sample(
        _devices(
            _request("mig1", MIG, f"{_SM}.isLessThan(quantity('30'))"),
            _request("mig2", MIG, f"{_SM}.isGreaterThan(quantity('50'))"),
        ),
        ("1g.5gb", "4g.20gb"),
        _each("gpu", "mig1", "mig2"),
    ),
    "gpu-simple-mig": Sample(
        _devices(_request("mig1g", MIG, f"{_SM}.isGreaterThan(quantity('10'))\n&&\n{_LARGE}")),
        ("3g.20gb",),
    ),
    "gpu-simple-mig-ts": Sample(
        _devices(
            _request("mig1gts", MIG, f"{_SM}.isGreaterThan(quantity('10'))"),
            config=[_config("mig1gts", {"strategy": "TimeSlicing"}, kind="MigDeviceConfig")],
        ),
        ("1g.5gb",),
    ),
}
