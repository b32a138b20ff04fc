"""GPUs that were sold, to try selectors on: the products of the simulator, as data.

They are missing where only the command line is installed; nothing is tried then.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from dra.gpu.geometry import Engines, Geometry, Placement, Profile
from dra.gpu.inventory import Gpu, Inventory

PROFILE = re.compile(
    r"(?<![\w.])(?P<slices>\d+)g\.(?P<size>\d+)gb(?P<kind>(?:[+.][a-z]+)*(?:-me)?)(?![\w.+-])"
)
_FILES = Path(__file__).parents[2] / "sim/nvml/fixtures"
_BRANDS = {"nvidia": "Nvidia", "nvidia-rtx": "NvidiaRTX", "tesla": "Tesla"}


def known_gpus(driver: str, profiles: Collection[str]) -> Inventory:
    """Each product in MIG mode and without it, alone and shared; none where they are missing.

    Drivers and boards differ in the names of a product's profiles: one with as many slices, and a
    size that differs by less than a quarter, goes by each of ``profiles`` too.
    """
    found = [json.loads(path.read_bytes()) for path in sorted(_FILES.glob("*.json"))]
    gpus = [gpu for minor, product in enumerate(found) for gpu in _gpus(product, minor, profiles)]
    return Inventory("", "", driver, (*gpus,))


def _gpus(product: dict[str, Any], minor: int, profiles: Collection[str]) -> list[Gpu]:
    sold = [_profile(row) for row in product["gi_profiles"]]
    others = [replace(p, name=n) for n in profiles for p in sold if _alike(p.name, n)]
    gpu = Gpu(
        minor,
        f"GPU-{minor}",
        pcie_root="pci0000:00",
        multiprocessors=max((p.multiprocessors for p in sold), default=0),
        geometry=Geometry((*sold, *others)),
        product_name=product["name"],
        brand=_BRANDS[product["brand"]],
        architecture=product["architecture"].capitalize(),
        cuda_compute_capability=".".join(map(str, product["cuda_compute_capability"])),
        pci_bus_id=f"0000:{minor:02x}:00.0",
        memory_mib=product["memory_total_mib"],
    )
    return [gpu, replace(gpu, shares=2), replace(gpu, mig_enabled=True, slice_shares=2)]


def _alike(name: str, other: str) -> bool:
    one, two = PROFILE.fullmatch(name), PROFILE.fullmatch(other)
    if not one or not two or one.group("slices", "kind") != two.group("slices", "kind"):
        return False
    return name != other and abs(int(one["size"]) - int(two["size"])) * 4 < int(one["size"])


def _profile(row: dict[str, Any]) -> Profile:
    engines = (row[key] for key in ("copy_engines", "decoders", "encoders", "jpeg", "ofa"))
    return Profile(
        row["id"],
        row["name"],
        row["slice_count"],
        row["memory_mib"],
        row["multiprocessors"],
        tuple(Placement(start, row["size"]) for start in row["starts"]),
        Engines(*engines),
    )
