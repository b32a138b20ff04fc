"""A program that takes the handle of one GPU, and tells which GPUs it has open then.

Prints ``asked`` if it is that GPU only, ``all`` if it is every GPU, ``open`` where that cannot be
told.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pynvml

_GPU_NODE = re.compile(r"/dev/nvidia\d+")


def device_files() -> list[str]:
    """The GPUs' device files that this process has open."""
    found: set[str] = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            found.add(str(descriptor.readlink()))
        except FileNotFoundError:
            continue  # that of the listing itself
    return sorted(filter(_GPU_NODE.fullmatch, found))


def main(held: Callable[[], list[str]] = device_files) -> None:
    """Try it with the first GPU."""
    try:
        pynvml.nvmlInit()
        there = pynvml.nvmlDeviceGetCount()
        pynvml.nvmlDeviceGetHandleByIndex(0)
    except pynvml.NVMLError as error:
        sys.stdout.write(f"open: {error}\n")
        return
    count = len(held())
    words = {1: "asked", there: "all"}
    sys.stdout.write(words.get(count, f"open: {count} of {there} GPUs are open") + "\n")


if __name__ == "__main__":
    main()
