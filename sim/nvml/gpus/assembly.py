"""Assembly of a new simulated machine from the GPUs that are wanted."""

from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from sim.nvml.products import Product, load_product
from sim.nvml.state import Gpu, MachineState
from sim.nvml.variants import Variants

DRIVER_VERSION = "570.86.15"
_CUDA_VERSION = 12080


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """One GPU to build: a bundled product's name, a product file, or a product.

    `minor` and `uuid` are chosen when not given; `mig` is the MIG mode at the start.
    """

    product: str | Path | Product
    mig: bool = True
    minor: int | None = None
    uuid: str = ""


def new_machine(
    gpus: list[GpuSpec],
    *,
    host_root: Path,
    driver_version: str,
    variants: Variants,
) -> tuple[MachineState, list[Product]]:
    """The state of a machine that has just booted for the first time, and its products.

    Raises:
        LookupError: a product that is not bundled.
    """
    products = [
        s.product if isinstance(s.product, Product) else load_product(s.product) for s in gpus
    ]
    state = MachineState(
        boot_id=str(uuid4()),
        host_root=str(host_root.absolute()),
        driver_version=driver_version,
        nvml_version=f"12.{driver_version}",
        cuda_version=_CUDA_VERSION,
        variants=variants,
        makes_nodes=variants.host_nodes == "made",
        gpus=[
            _new_gpu(spec, product, index)
            for index, (spec, product) in enumerate(zip(gpus, products, strict=True))
        ],
    )
    return state, products


def _new_gpu(spec: GpuSpec, product: Product, index: int) -> Gpu:
    mig = spec.mig and bool(product.gi_profiles)
    return Gpu(
        uuid=spec.uuid or f"GPU-{uuid4()}",
        product=product.product,
        minor=index if spec.minor is None else spec.minor,
        pci_bus_id=f"00000000:{0x07 + 8 * index:02X}:00.0",
        serial=f"{1320000000000 + index}",
        mig=mig,
        mig_pending=mig,
    )
