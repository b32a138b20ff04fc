"""The process's one NVML session: calls, and the handles of its GPUs.

It stays open: without it, looking up a MIG handle by UUID was seen to take ten seconds under load.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import pynvml

from kubeletplugin.nvml.errors import (
    DriverUnavailableError,
    GpuLostError,
    GpuNotFoundError,
    GpuReleasedError,
    NvmlError,
    translate,
)
from kubeletplugin.nvml.session import ComputeProfiles, Device, Handles, Library

_OF_A_GENERATION = (
    pynvml.c_nvmlDevice_t,
    pynvml.c_nvmlGpuInstance_t,
    pynvml.c_nvmlComputeInstance_t,
    pynvml.c_nvmlEventSet_t,
)
T = TypeVar("T")
P = ParamSpec("P")


class Session(Library):
    """NVML, and the GPUs that were found with it. Thread-safe."""

    def __init__(
        self,
        *,
        seconds: float = 10.0,
        on_call: Callable[[str, str, float], None] = lambda _name, _code, _seconds: None,
    ) -> None:
        super().__init__(seconds=seconds, on_call=on_call)
        self._initialising = threading.Lock()
        self._handles = Handles()
        self.names_processes = True
        """True if NVML can name all processes of the node; without, an empty list says nothing."""
        self.released: frozenset[str] = frozenset()
        """UUIDs of GPUs of which no handle is taken; see ``reopen`` for those that are taken."""
        self.compute_profiles = ComputeProfiles()

    def call(self, function: Callable[..., T], *arguments: Any, gpu: str = "") -> T:
        """Call a function of pynvml; ``gpu`` is the UUID to name in an error.

        A library that says UNINITIALIZED although it was initialised (the driver was exchanged
        under it) is initialised once more, and the call repeated unless it is about what the
        library gave out before. Where only one GPU says that the driver is away, it is an error of
        that GPU.
        """
        if not self._use.inside:
            with self.together():
                return self.call(function, *arguments, gpu=gpu)
        generation = self._generation
        fresh = arguments
        if not self._handles.are_current(arguments, generation):
            fresh = self._fresh(arguments)
        try:
            return self._run(function, *fresh, gpu=gpu)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_GPU_IS_LOST:
                self._handles.forget(gpu)
            failure = translate(function.__name__, error.value, gpu=gpu)
            if not isinstance(failure, DriverUnavailableError) or not self._open:
                raise failure from error
            if self._driver_answers():
                raise NvmlError(function.__name__, error.value, gpu=gpu) from error
            if error.value != pynvml.NVML_ERROR_UNINITIALIZED:
                raise failure from error
        with self._initialising:
            if generation == self._generation:
                self._initialise()
        fresh = self._fresh(fresh)
        if any(isinstance(a, _OF_A_GENERATION) and not self._handles.owner(a) for a in fresh):
            raise translate(function.__name__, pynvml.NVML_ERROR_NOT_READY, gpu=gpu)
        return self._translated(function, *fresh, gpu=gpu)

    def device(self, uuid: str) -> Any:
        """The kept handle of a GPU; in a new generation it is taken anew where the GPU last was.

        Raises:
            GpuLostError: this machine has no such GPU now, as far as could be seen.
            GpuReleasedError: it is released.
        """
        if self._use.inside:
            return self._device(uuid)
        with self.together():
            return self._device(uuid)

    def _device(self, uuid: str) -> Any:
        if uuid in self.released:
            raise GpuReleasedError(uuid)
        kept = self._handles.get(uuid, self._generation)
        if kept is not None:
            return kept.handle
        address = self._handles.address(uuid)
        if not address:
            raise _absent(uuid, "it was not found when GPUs were looked for")
        by_address = pynvml.nvmlDeviceGetHandleByPciBusId
        try:
            handle = self.call(by_address, address.encode(), gpu=uuid)
            found = self._verified(handle, label=uuid)
        except GpuNotFoundError as error:
            raise _absent(uuid, f"nothing is at its PCI address {address}") from error
        if found.uuid != uuid:
            raise _absent(uuid, f"at its PCI address {address} is now {found.uuid}")
        return found.handle

    def take(self, index: int) -> Device:
        """The GPU at an index, its handle taken and kept.

        Until its UUID is known, its calls have a deadline of their own under its index.

        Raises:
            NvmlError: it does not answer.
        """
        label = f"with index {index}"
        with self.together():
            handle = self.call(pynvml.nvmlDeviceGetHandleByIndex, index, gpu=label)
            return self._verified(handle, label=label)

    def take_at(self, address: str) -> Device:
        """The GPU at a PCI address, its handle taken and kept; no other GPU is touched.

        Raises:
            NvmlError: it does not answer, or there is none.
        """
        label = f"at PCI address {address}"
        with self.together():
            by_address = pynvml.nvmlDeviceGetHandleByPciBusId
            handle = self.call(by_address, address.encode(), gpu=label)
            return self._verified(handle, label=label)

    def driver_version(self) -> str:
        """Version of the kernel driver: ``570.86.10``."""
        return str(self.call(pynvml.nvmlSystemGetDriverVersion))

    def cuda_version(self) -> str:
        """Newest CUDA version that the driver serves: ``12.8``."""
        version = int(self.call(pynvml.nvmlSystemGetCudaDriverVersion))
        return f"{version // 1000}.{version % 1000 // 10}"

    def _verified(self, handle: Any, *, label: str) -> Device:
        """The GPU of a handle as itself says; from now on its handle is kept."""
        uuid = self.call(pynvml.nvmlDeviceGetUUID, handle, gpu=label)
        try:
            address = _text(self.call(pynvml.nvmlDeviceGetPciInfo, handle, gpu=label).busId)
        except NvmlError:
            address = ""
        found = Device(uuid, handle, address)
        self._handles.keep(found, self._generation)
        return found

    def _driver_answers(self) -> bool:
        try:
            for function in (pynvml.nvmlSystemGetDriverVersion, pynvml.nvmlDeviceGetCount):
                self._translated(function)
        except DriverUnavailableError:
            return False
        except NvmlError:
            return True
        return True

    def _fresh(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Arguments with the current handles of those GPUs whose earlier ones are among them."""
        return tuple(map(self._renewed, arguments))

    def _renewed(self, argument: Any) -> Any:
        uuid = self._handles.owner(argument)
        if not uuid:
            return argument
        kept = self._handles.get(uuid, self._generation)
        if kept is not None and kept.handle is argument:
            return argument
        return self.device(uuid)


def together(
    function: Callable[Concatenate[Session, str, P], T],
) -> Callable[Concatenate[Session, str, P], T]:
    """Make a function's calls, for the GPU of its first argument, one operation of its session.

    They see one generation, so that it may keep what NVML gave it, and share one thread.
    """

    @wraps(function)
    def within(session: Session, gpu: str, /, *arguments: P.args, **named: P.kwargs) -> T:
        return session.as_one(lambda: function(session, gpu, *arguments, **named), gpu=gpu)

    return within


def _absent(uuid: str, detail: str) -> GpuLostError:
    return GpuLostError(
        "nvmlDeviceGetHandleByPciBusId", pynvml.NVML_ERROR_NOT_FOUND, gpu=uuid, detail=detail
    )


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
