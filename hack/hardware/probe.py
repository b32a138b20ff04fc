"""Runs inside a container that has nothing but Python and what its CDI devices give it.

``probe.py compute`` works something out on the GPU, ``probe.py memory`` takes memory until it is
refused, ``probe.py hold`` keeps a context until its input ends. Prints one line of JSON: the steps
that worked, and in ``failed`` the one that did not. Imports the standard library alone.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

_COUNT = 1 << 16
_BLOCK = 256
_STEP_MIB = 64
_MULTIPROCESSORS = 16
"""CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT of cuda.h."""
_PTX = b"""
.version 7.0
.target sm_80
.address_size 64
.visible .entry work(.param .u64 address, .param .u32 count) {
    .reg .pred %p<2>; .reg .b32 %r<8>; .reg .b64 %d<5>;
    ld.param.u64 %d1, [address]; ld.param.u32 %r1, [count]; cvta.to.global.u64 %d2, %d1;
    mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r5, %r1; @%p1 bra DONE;
    mul.wide.u32 %d3, %r5, 4; add.s64 %d4, %d2, %d3;
    ld.global.u32 %r6, [%d4]; mad.lo.s32 %r7, %r6, 3, %r5; st.global.u32 [%d4], %r7;
DONE: ret;
}
\0"""
"""Replaces each number x at place i by 3x + i. Made for the first GPUs with MIG, and newer ones."""


class RefusedError(Exception):
    """A call of libcuda that did not succeed; the text has its name and its error's."""


class Cuda:
    """libcuda's driver API with a context on its first device; ``seen`` collects what it told."""

    def __init__(self, seen: dict[str, Any]) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        device, context, count = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
        self.call("cuInit", 0)
        self.call("cuDeviceGetCount", ctypes.byref(count))
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        name, number = ctypes.create_string_buffer(96), ctypes.c_int()
        self.call("cuDeviceGetName", name, len(name), device)
        self.call("cuDeviceGetAttribute", ctypes.byref(number), _MULTIPROCESSORS, device)
        seen |= {"devices": count.value, "name": name.value.decode(errors="replace")}
        self.call("cuCtxCreate_v2", ctypes.byref(context), 0, device)
        seen["multiprocessors"] = number.value

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function; RefusedError if it answers anything but success."""
        code = getattr(self._library, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(code, ctypes.byref(text))
            raise RefusedError(f"{name}: {code} {(text.value or b'').decode()}")

    def allocate(self, size: int) -> ctypes.c_uint64:
        """Device memory of ``size`` bytes."""
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address


def compute(cuda: Cuda, seen: dict[str, Any]) -> None:
    """Run the kernel over many numbers and compare each."""
    numbers = (ctypes.c_uint32 * _COUNT)(*range(_COUNT))
    address, size = cuda.allocate(ctypes.sizeof(numbers)), ctypes.c_size_t(ctypes.sizeof(numbers))
    cuda.call("cuMemcpyHtoD_v2", address, numbers, size)
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    cuda.call("cuModuleLoadData", ctypes.byref(module), _PTX)
    cuda.call("cuModuleGetFunction", ctypes.byref(function), module, b"work")
    count = ctypes.c_uint32(_COUNT)
    given = (ctypes.c_void_p * 2)(
        *(ctypes.cast(ctypes.byref(each), ctypes.c_void_p) for each in (address, count))
    )
    grid = (_COUNT // _BLOCK, 1, 1, _BLOCK, 1, 1)
    cuda.call("cuLaunchKernel", function, *grid, 0, None, given, None)
    cuda.call("cuCtxSynchronize")
    cuda.call("cuMemcpyDtoH_v2", numbers, address, size)
    seen["right"] = all(value == 4 * place for place, value in enumerate(numbers))


def memory(cuda: Cuda, seen: dict[str, Any]) -> None:
    """Take memory until it is refused; how much there was, and the refusal's words."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    cuda.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    seen |= {"free_mib": free.value >> 20, "total_mib": total.value >> 20, "taken_mib": 0}
    try:
        while seen["taken_mib"] < 2 * seen["total_mib"]:
            cuda.allocate(_STEP_MIB << 20)
            seen["taken_mib"] += _STEP_MIB
    except RefusedError as error:
        seen["refused"] = str(error)


def main() -> None:
    """Do what the command line says."""
    seen: dict[str, Any] = {}
    try:
        cuda = Cuda(seen)
        match sys.argv[1:]:
            case ["compute"]:
                compute(cuda, seen)
            case ["memory"]:
                memory(cuda, seen)
            case ["hold"]:
                sys.stdin.read()
    except (OSError, AttributeError, RefusedError) as error:
        seen["failed"] = str(error)
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
