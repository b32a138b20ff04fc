"""A product's file that is wrong is refused with the file, the field and what is allowed there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sim.nvml import products
from sim.nvml.cli import main
from sim.nvml.products import FIXTURES, load_product, product_names
from sim.strictjson import ContentError

A30 = json.loads((FIXTURES / "A30.json").read_text())


def change(path: str, value: Any) -> Callable[[Any], None]:
    """Set what stands at ``a.0.b`` of a product."""

    def act(body: Any) -> None:
        *way, last = path.split(".")
        for step in way:
            body = body[int(step) if step.isdigit() else step]
        body[last] = value

    return act


WRONG: dict[str, tuple[Callable[[Any], None], tuple[str, ...]]] = {
    "misspelt brand": (
        change("brand", "nvidai"),
        ("brand: ", "'nvidai'", "allowed are: nvidia, nvidia-rtx, tesla"),
    ),
    "unknown architecture": (
        change("architecture", "Ampere"),
        ("architecture: ", "ada, ampere, blackwell"),
    ),
    "unknown field": (
        change("memory_slice", 4),
        ("unknown field `memory_slice`", "allowed are: product, name", "memory_slices"),
    ),
    "unknown field of a profile": (
        change("gi_profiles.0.decoder", 1),
        ("gi_profiles[0]: ", "unknown field `decoder`", "decoders"),
    ),
    "unknown field of a compute profile": (
        change("gi_profiles.0.ci_profiles.0.slices", 1),
        ("gi_profiles[0].ci_profiles[0]: ", "unknown field `slices`", "slice_count"),
    ),
    "text for a number": (change("gi_profiles.0.size", "1"), ("gi_profiles[0].size: ", "`int`")),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_is_refused_by_field_with_what_is_allowed(name: str, tmp_path: Path) -> None:
    break_it, says = WRONG[name]
    body = json.loads(json.dumps(A30))
    break_it(body)
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(body))
    with pytest.raises(ContentError) as refused:
        load_product(file)
    assert ("assumed" in str(refused.value)) is ("unknown field" in name)
    for words in (f"{file} is no file of a GPU product: ", *says):
        assert words in str(refused.value)
    made = CliRunner().invoke(main, ["init", "--state", str(tmp_path / "hw"), "--gpu", str(file)])
    assert made.exit_code == 1
    assert says[-1] in made.output


def test_a_fixture_that_was_copied_has_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "A31.json").write_text(json.dumps(A30))
    monkeypatch.setattr(products, "FIXTURES", tmp_path)
    with pytest.raises(ContentError, match=r"A31.json: product: 'A30' .* write 'A31'"):
        load_product("A31")


@pytest.mark.parametrize("field", ["name", "pci_device_id"])
def test_no_two_products_are_the_same_card(field: str) -> None:
    """A file that was copied keeps what its pattern has."""
    files = {name: str(getattr(load_product(name), field)) for name in product_names()}
    twice = {n: value for n, value in files.items() if [*files.values()].count(value) > 1}
    assert not twice, f"sim/nvml/fixtures: {field} is that of another product, correct it: {twice}"
