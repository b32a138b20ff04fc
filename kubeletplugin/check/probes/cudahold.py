"""A program that holds a slice: it makes a CUDA context and waits until its input ends.

The first argument is libcuda's path; CUDA_VISIBLE_DEVICES names the slice. Prints ``ready``, or in
one line which call failed.
"""

from __future__ import annotations

import ctypes
import sys


def main() -> None:
    """Hold the first device that CUDA sees."""
    try:
        cuda = ctypes.CDLL(sys.argv[1])
    except OSError as error:
        _say(f"libcuda cannot be loaded: {error}")
        return
    device, context = ctypes.c_int(), ctypes.c_void_p()
    calls = (
        ("cuInit", (0,)),
        ("cuDeviceGet", (ctypes.byref(device), 0)),
        ("cuCtxCreate_v2", (ctypes.byref(context), 0, device)),
    )
    for name, arguments in calls:
        if code := getattr(cuda, name)(*arguments):
            _say(f"{name} answers {code}")
            return
    _say("ready")
    sys.stdin.read()


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
