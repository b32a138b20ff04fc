"""The process's one NVML session: the library, the calls into it, and the handles of GPUs.

The session stays open: without one, looking up a MIG handle by UUID was seen to take ten seconds
under load. nvmlShutdown waits until other calls have left the library (580.159 on H100; nvml.h says
nothing), so that it is called only when no other call of ours runs.

By nvml.h, nvmlDeviceGetHandleByUUID may answer GPU_IS_LOST as soon as any GPU is lost, and may
initialise other GPUs. By index and by PCI address only the GPU that is asked for answers: so
handles are taken by index or address, verified by UUID, and kept until the next nvmlInit.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import pynvml

from kubeletplugin import times
from kubeletplugin.nvml.calls import AbandonedError, Calls
from kubeletplugin.nvml.errors import (
    DriverUnavailableError,
    GpuLostError,
    GpuNotFoundError,
    GpuReleasedError,
    HangError,
    NvmlError,
    code_name,
    translate,
)

_log = logging.getLogger(__name__)
_CHANGES = frozenset(
    {
        "nvmlDeviceCreateGpuInstanceWithPlacement",
        "nvmlGpuInstanceCreateComputeInstance",
        "nvmlGpuInstanceDestroy",
        "nvmlComputeInstanceDestroy",
        "nvmlDeviceSetMigMode",
        "nvmlInit",
    }
)
_BY_ADDRESS = pynvml.nvmlDeviceGetHandleByPciBusId
_SUCCESS = code_name(pynvml.NVML_SUCCESS)
T = TypeVar("T")
D = TypeVar("D")
P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU that answered. ``address``: its PCI address, empty if the GPU did not tell it."""

    uuid: str
    handle: Any
    address: str = ""


@dataclass(frozen=True, slots=True)
class ComputeProfile:
    """A compute-instance profile: its enum, and fields of nvmlComputeInstanceProfileInfo_t."""

    enum: int
    id: int
    slices: int
    multiprocessors: int


class Session:
    """NVML, and the GPUs that were found with it. Thread-safe; raises errors of ``nvml.errors``.

    ``seconds``: deadline of a call; a call that changes something has six times as long. While a
    call hangs, further calls for the same GPU fail at once; calls for other GPUs are not affected.
    ``on_call``: called after each call with the function's name, the name of its code or HANG, and
    the seconds that it took.
    """

    def __init__(
        self,
        *,
        seconds: float = 10.0,
        on_call: Callable[[str, str, float], None] = lambda _name, _code, _seconds: None,
    ) -> None:
        self.seconds = seconds
        self.names_processes = True
        """True if NVML can name all processes of the node; else its empty lists prove nothing."""
        self.released: frozenset[str] = frozenset()
        """UUIDs of GPUs of which no handle is taken; only ``reopen`` drops handles taken before."""
        self.compute_profiles: dict[tuple[str, int], tuple[ComputeProfile, ...]] = {}
        """Compute-instance profiles, by the GPU's UUID and the id of the GPU-instance profile; kept
        in this generation once an instance was made by them, so that they are asked for once."""
        self.event_sets: dict[str, Any] = {}
        """Event sets that were not freed, by what they are for. Freed before NVML is shut down: one
        that is left keeps the device files of its GPUs open (580.159 on H100)."""
        self.is_open = False
        """True if ``open`` has succeeded and ``close`` was not called since."""
        self.generation = 0
        """Number of initialisations so far; handles of an earlier generation are not valid."""
        self._on_call = on_call
        self._calls = Calls(seconds)
        self._lock = threading.Lock()
        self._initialised = False
        self._devices: dict[str, Device] = {}
        self._addresses: dict[str, str] = {}

    @property
    def wanted(self) -> bool:
        """True if the session is to be closed or opened anew, so that waits for events must end."""
        return self._calls.wanted

    def open(self) -> None:
        """Load the library and initialise it; does nothing if the session is open already.

        Raises:
            DriverUnavailableError: no library or no driver; try again later.
        """
        with self._lock:
            if self.is_open:
                return
            if self._initialised:
                # An earlier close had to leave the library, as calls hung; these may be over now.
                self._shut_down(0.0)
            if not self._initialised:
                self._initialise()
            self.is_open = True

    def close(self, seconds: float | None = None) -> bool:
        """Refuse new calls, end waits for events, let calls finish, and shut the library down.

        ``seconds``: time for running calls to finish, by default the deadline of a call. Returns
        False if a call has not come back by then: the call is named in the log, and the library is
        not shut down. Errors of nvmlShutdown are only logged.
        """
        with self._lock:
            self.is_open = False
            return not self._initialised or self._shut_down(
                self.seconds if seconds is None else seconds
            )

    def reopen(self, seconds: float) -> bool:
        """Shut the library down and initialise it anew; calls that are begun meanwhile wait.

        Returns False, and nothing was done, if the session is not open or running calls have not
        come back within ``seconds``.

        Raises:
            DriverUnavailableError: the library could not be initialised again; the session is
                closed.
        """
        with self._lock:
            if not self.is_open or self._calls.overdue():
                return False
            with self._calls.alone(seconds) as alone:
                if not alone:
                    return False
                self._end()
                try:
                    self._initialise()
                except NvmlError:
                    self.is_open = False
                    raise
        return True

    def as_one(self, work: Callable[[], T], *, gpu: str) -> T:
        """Result of ``work``, whose calls for that GPU share one thread and one generation.

        Raises:
            DriverUnavailableError: the session is closed.
            HangError: a call of the work has not come back; the work goes no further.
            NvmlError: as raised by the work.
        """
        if self._calls.current is not None:
            return work()
        if not self.is_open:
            raise DriverUnavailableError(
                "nvmlInit", pynvml.NVML_ERROR_UNINITIALIZED, detail="NVML is closed"
            )
        return self._operate(work, gpu=gpu)

    def hangs(self, gpu: str) -> str:
        """Text with the call for a GPU that has not come back in time; empty if there is none."""
        return self._calls.hangs(gpu)

    def call(self, function: Callable[..., T], *arguments: Any, gpu: str = "") -> T:
        """Call a function of pynvml.

        ``gpu``: UUID of the GPU that the call is for, empty for none; errors name it. Handles among
        the arguments must be taken in the same :meth:`as_one`, so that they are of this generation.
        If a call for a GPU says that the driver is gone, and a call for no GPU shows that it is
        there, a plain NvmlError of that GPU is raised.
        """
        if self._calls.current is None:
            return self.as_one(partial(self.call, function, *arguments, gpu=gpu), gpu=gpu)
        try:
            return self._ask(function, *arguments, gpu=gpu)
        except GpuLostError:
            self._devices.pop(gpu, None)
            raise
        except DriverUnavailableError as error:
            if gpu and self.is_open and self._driver_answers():
                raise NvmlError(error.operation, error.code, gpu=gpu) from error
            raise

    def told(
        self,
        function: Callable[..., T],
        *arguments: Any,
        instead: D,
        gpu: str = "",
        refusals: list[NvmlError] | None = None,
    ) -> T | D:
        """Result of :meth:`call`, or ``instead`` where NVML refuses it: that joins ``refusals``.

        Raises:
            GpuLostError: the GPU is gone.
            DriverUnavailableError: the driver is gone.
            HangError: the call has not come back.
        """
        try:
            return self.call(function, *arguments, gpu=gpu)
        except (GpuLostError, DriverUnavailableError, HangError):
            raise
        except NvmlError as error:
            if refusals is not None:
                refusals.append(error)
            return instead

    def device(self, uuid: str) -> Any:
        """Handle of a GPU; in a new generation it is taken anew at the GPU's last PCI address.

        Raises:
            GpuLostError: the GPU was never found, or is not at its last PCI address any more.
            GpuReleasedError: the GPU is released.
        """
        if self._calls.current is None:
            return self.as_one(partial(self.device, uuid), gpu=uuid)
        if uuid in self.released:
            raise GpuReleasedError(uuid)
        kept = self._devices.get(uuid)
        if kept is not None:
            return kept.handle
        address = self._addresses.get(uuid, "")
        if not address:
            raise _absent(uuid, "it was not found when GPUs were looked for")
        try:
            handle = self.call(_BY_ADDRESS, address.encode(), gpu=uuid)
            found = self._verified(handle, label=uuid)
        except GpuNotFoundError as error:
            raise _absent(uuid, f"nothing is at its PCI address {address}") from error
        if found.uuid != uuid:
            raise _absent(uuid, f"at its PCI address {address} is now {found.uuid}")
        return found.handle

    def take(self, place: int | str) -> Device:
        """The GPU at an index or a PCI address; its handle is kept, and no other GPU is touched.

        Until its UUID is known, the GPU goes by its place: a call that hangs blocks only calls for
        the same place.

        Raises:
            NvmlError: the GPU does not answer, or there is none at the place.
        """
        is_index = isinstance(place, int)
        label = f"with index {place}" if is_index else f"at PCI address {place}"

        def taken() -> Device:
            by = pynvml.nvmlDeviceGetHandleByIndex if is_index else _BY_ADDRESS
            where = place if isinstance(place, int) else place.encode()
            return self._verified(self.call(by, where, gpu=label), label=label)

        return self.as_one(taken, gpu=label)

    def driver_version(self) -> str:
        """Version of the kernel driver, such as ``570.86.10``."""
        return str(self.call(pynvml.nvmlSystemGetDriverVersion))

    def cuda_version(self) -> str:
        """Newest CUDA version that the driver serves, such as ``12.8``; empty if not told."""
        version = self.told(pynvml.nvmlSystemGetCudaDriverVersion, instead=0)
        return f"{version // 1000}.{version % 1000 // 10}" if version else ""

    def _verified(self, handle: Any, *, label: str) -> Device:
        """The GPU of a handle, by the UUID that the GPU tells; its handle is kept from now on."""
        uuid = self.call(pynvml.nvmlDeviceGetUUID, handle, gpu=label)
        try:
            address = self.call(pynvml.nvmlDeviceGetPciInfo, handle, gpu=label).busId
            address = address.decode() if isinstance(address, bytes) else address
        except NvmlError:
            address = ""
        found = self._devices[uuid] = Device(uuid, handle, address)
        if address:
            self._addresses[uuid] = address
        return found

    def _driver_answers(self) -> bool:
        try:
            for function in (pynvml.nvmlSystemGetDriverVersion, pynvml.nvmlDeviceGetCount):
                self._ask(function)
        except DriverUnavailableError:
            return False
        except NvmlError:
            return True
        return True

    def _initialise(self) -> None:
        self._operate(partial(self._ask, pynvml.nvmlInit), gpu="", alone=True)
        self._initialised = True
        self.generation += 1
        self._devices.clear()
        self.compute_profiles.clear()

    def _shut_down(self, seconds: float) -> bool:
        with self._calls.alone(seconds) as alone:
            if alone:
                self._end()
                return True
        _log.error(
            "NVML is left open: calls have not come back within %g s: %s",
            seconds,
            "; ".join(self._calls.inside()) or "a wait for events, or several calls that are one",
        )
        return False

    def _end(self) -> None:
        self._initialised = False
        left, self.event_sets = list(self.event_sets.values()), {}
        ends = [partial(self._ask, pynvml.nvmlEventSetFree, each) for each in left]
        for end in (*ends, partial(self._ask, pynvml.nvmlShutdown)):
            try:
                self._operate(end, gpu="", alone=True)
            except NvmlError as error:
                _log.warning("%s", error)

    def _operate(self, work: Callable[[], T], *, gpu: str, alone: bool = False) -> T:
        began = time.monotonic()
        try:
            return self._calls.operate(work, gpu=gpu, alone=alone)
        except HangError as error:
            self._on_call(error.operation, "HANG", time.monotonic() - began)
            raise

    def _ask(self, function: Callable[..., T], *arguments: Any, gpu: str = "") -> T:
        name = function.__name__
        factor = times.NVML_CHANGE_FACTOR if name in _CHANGES else 1.0
        began, code = time.monotonic(), _SUCCESS
        try:
            return self._calls.run(name, partial(function, *arguments), factor=factor)
        except pynvml.NVMLError as error:
            code = code_name(error.value)
            raise translate(name, error.value, gpu=gpu) from error
        except AbandonedError:
            code = ""  # the thread that waited has reported the call as HANG
            raise
        finally:
            if code:
                self._on_call(name, code, time.monotonic() - began)


def together(
    function: Callable[Concatenate[Session, str, P], T],
) -> Callable[Concatenate[Session, str, P], T]:
    """Decorate a function of a session and a GPU, so that all its calls are one operation.

    The calls share one thread and one generation, so that the function may keep NVML's handles
    from one call to the next.
    """

    @wraps(function)
    def within(session: Session, gpu: str, /, *arguments: P.args, **named: P.kwargs) -> T:
        return session.as_one(partial(function, session, gpu, *arguments, **named), gpu=gpu)

    return within


def _absent(uuid: str, detail: str) -> GpuLostError:
    return GpuLostError(_BY_ADDRESS.__name__, pynvml.NVML_ERROR_NOT_FOUND, gpu=uuid, detail=detail)
