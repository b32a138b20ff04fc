"""What a GPU product offers, read from JSON: fixtures of real products, or any invented one.

No code knows a product: a machine keeps copies of its products beside its state. In the fixtures
`assumed` names each value that no published print confirms and says how it was filled in;
`driver_order` is the order in which the driver tries starts when the caller names none (the first
two starts of A100's 1g profile and the first one of 2g and 3g are published, the rest is assumed).
"""

from pathlib import Path

import msgspec

FIXTURES = Path(__file__).parent / "fixtures"


class ComputeInstanceProfile(msgspec.Struct, frozen=True, kw_only=True):
    """One row of nvmlGpuInstanceGetComputeInstanceProfileInfo.

    `creatable` is false for a profile that drivers report and then refuse to create.
    """

    name: str
    enum: int
    id: int
    slice_count: int
    instance_count: int
    multiprocessors: int
    creatable: bool = True
    assumed: dict[str, str] = {}


class GpuInstanceProfile(msgspec.Struct, frozen=True, kw_only=True):
    """One row of nvmlDeviceGetGpuInstanceProfileInfo: `enum` asks for it, `id` creates with it.

    `starts` and `size` are in memory slices, `memory_mib` is what NVML reports.
    """

    name: str
    enum: int
    id: int
    slice_count: int
    instance_count: int
    memory_mib: int
    multiprocessors: int
    copy_engines: int
    decoders: int
    encoders: int
    jpeg: int
    ofa: int
    p2p: bool
    starts: tuple[int, ...]
    size: int
    ci_profiles: tuple[ComputeInstanceProfile, ...]
    driver_order: tuple[int, ...] = ()
    assumed: dict[str, str] = {}

    def compute_profile(self, profile_id: int) -> ComputeInstanceProfile | None:
        """The compute-instance profile with this id, if the GPU instance offers it."""
        return next((p for p in self.ci_profiles if p.id == profile_id), None)


class Product(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU product. No `gi_profiles` means that it cannot do MIG."""

    product: str
    name: str
    architecture: str
    cuda_compute_capability: tuple[int, int]
    brand: str
    pci_device_id: str
    memory_total_mib: int
    memory_slices: int
    compute_slices: int
    mig_mode_needs_reset: bool
    mig_mode_survives_reboot: bool
    gi_profiles: tuple[GpuInstanceProfile, ...] = ()
    assumed: dict[str, str] = {}

    def profile(self, profile_id: int) -> GpuInstanceProfile | None:
        """The GPU-instance profile with this id."""
        return next((p for p in self.gi_profiles if p.id == profile_id), None)

    @property
    def whole(self) -> GpuInstanceProfile:
        """The profile that takes the whole GPU: its engines are the GPU's engines."""
        return max(self.gi_profiles, key=lambda p: (p.size, p.slice_count))


def product_names() -> list[str]:
    """Names of the bundled fixtures, for `--gpu` and messages."""
    return sorted(path.stem for path in FIXTURES.glob("*.json"))


def load_product(product: str | Path) -> Product:
    """Read a product from a bundled fixture's name or from a JSON file's path.

    Raises:
        LookupError: no such fixture or file; the message lists the fixtures.
    """
    path = FIXTURES / f"{product}.json" if isinstance(product, str) else product
    if not path.is_file():
        raise LookupError(
            f"no GPU product {str(product)!r}; bundled products: {', '.join(product_names())}"
        )
    return msgspec.json.decode(path.read_bytes(), type=Product)
