from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest

from sim.nvml import install, uninstall
from sim.nvml.machine import GpuSpec, Machine

Start = Callable[..., Machine]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Build a machine with these GPUs, put it under pynvml and initialise."""

    def build(*gpus: str | GpuSpec, init: bool = True) -> Machine:
        specs = [gpu if isinstance(gpu, GpuSpec) else GpuSpec(gpu) for gpu in gpus]
        machine = Machine.create(tmp_path / "machine", specs)
        install(machine.directory)
        if init:
            pynvml.nvmlInit()
        return machine

    yield build
    uninstall()


@pytest.fixture
def a100(start: Start) -> Machine:
    return start("A100-SXM4-40GB")
