"""Simulated NVML: a machine's GPUs in a directory, under the real pynvml.

`install()` puts an object in the place of the library that pynvml has loaded, at the level of the
C functions, so that pynvml's structs and error translation run above it.
"""

from pathlib import Path

import pynvml

from sim.nvml import functions  # noqa: F401 - enters the C functions into the library
from sim.nvml.host import show_pid_namespace
from sim.nvml.library import SimulatedLibrary
from sim.nvml.session import Session


def install(state_dir: str | Path) -> None:
    """Makes pynvml of this process talk to the machine in `state_dir`.

    Installing again replaces the library, as a new process would load it: nothing is initialised
    and no handle is known.

    Raises:
        FileNotFoundError: the directory holds no machine.
    """
    end()
    session = Session(Path(state_dir))
    state = session.store.read()
    hidden = state.variants.processes == "hidden"
    show_pid_namespace(Path(state.host_root), hidden=hidden)
    pynvml.nvmlLib = SimulatedLibrary(session)
    pynvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001 - it holds the old library's


def end() -> None:
    """The process ends, as far as the machine can tell: what it held of the driver is free."""
    if isinstance(pynvml.nvmlLib, SimulatedLibrary):
        pynvml.nvmlLib.end()


def uninstall() -> None:
    """Leaves pynvml as it was before it loaded a library."""
    end()
    pynvml.nvmlLib = None
    pynvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001 - it holds our functions
