"""A compiled libnvidia-ml.so.1 without hardware, and the machine that it shows."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

from sim.nvml.functions.devices import ARCHITECTURES, BRANDS
from sim.nvml.machine import Machine
from sim.nvml.products import Product
from sim.processes import ClusterError

NAME = "libnvidia-ml.so.1"
_SOURCE = Path(__file__).parent / "nvml.c"


def build(folder: Path) -> Path:
    """Compile the library into a folder.

    Raises:
        ClusterError: there is no C compiler, or it refuses.
    """
    library = folder / NAME
    command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(_SOURCE), "-lpthread"]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise ClusterError("no C compiler (cc): install one, or name a library") from error
    except subprocess.CalledProcessError as error:
        raise ClusterError(f"cc: {error.stderr}") from error
    return library


def description(machine: Machine) -> str:
    """The file that tells the library of the GPUs of a machine, which are all of one product."""
    state, product = machine.state(), machine.product(0)
    major, minor = product.cuda_compute_capability
    facts = (
        state.cuda_version,
        ARCHITECTURES[product.architecture],
        BRANDS[product.brand],
        major,
        minor,
        product.memory_total_mib,
    )
    lines = [
        f"host {state.host_root}",
        f"driver {state.driver_version}",
        f"product {product.name}",
        f"facts {_numbers(facts)}",
        *(f"gpu {g.uuid} {g.minor} {g.pci_bus_id}" for g in state.gpus),
        *_profiles(product),
    ]
    return "".join(f"{line}\n" for line in lines)


def _profiles(product: Product) -> Iterator[str]:
    for p in product.gi_profiles:
        numbers = (
            *(p.enum, p.id, int(p.p2p), p.slice_count, p.instance_count, p.multiprocessors),
            *(p.copy_engines, p.decoders, p.encoders, p.jpeg, p.ofa, p.size, p.memory_mib),
        )
        yield f"profile {_numbers(numbers)} {p.name}"
        yield from (f"start {start}" for start in p.starts)
        for c in p.ci_profiles:
            of_part = (c.enum, c.id, c.slice_count, c.instance_count, c.multiprocessors)
            yield f"part {_numbers(of_part)} {c.name}"


def _numbers(values: tuple[int, ...]) -> str:
    return " ".join(map(str, values))
