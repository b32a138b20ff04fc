"""Products: no two are the same card."""

from __future__ import annotations

import pytest

from sim.nvml.products import load_product, product_names


@pytest.mark.parametrize("field", ["name", "pci_device_id"])
def test_no_two_products_are_the_same_card(field: str) -> None:
    """A file that was copied keeps what its pattern has."""
    files = {name: str(getattr(load_product(name), field)) for name in product_names()}
    twice = {n: value for n, value in files.items() if [*files.values()].count(value) > 1}
    assert not twice, f"sim/nvml/fixtures: {field} is that of another product, correct it: {twice}"
