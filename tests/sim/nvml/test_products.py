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
    "start behind the end": (
        change("gi_profiles.0.starts", [0, 1, 2, 4]),
        ("starts of 1g.6gb are 0, 1, 2, 4", "4 memory_slices", "allows 0 to 3"),
    ),
    "start twice": (change("gi_profiles.0.starts", [0, 0]), ("starts of 1g.6gb", "once")),
    "no size": (change("gi_profiles.0.size", 0), ("size of 1g.6gb is 0", "at least 1")),
    "other starts in the driver's order": (
        change("gi_profiles.0.driver_order", [3, 2, 1]),
        ("driver_order of 1g.6gb is 3, 2, 1", "0, 1, 2, 3"),
    ),
    "too many compute slices": (
        change("compute_slices", 3),
        ("slice_count of 4g.24gb is 4", "allowed are 1 to 3"),
    ),
    "more compute slices than the profile": (
        change("gi_profiles.0.ci_profiles.0.slice_count", 2),
        ("slice_count of 1c.1g.6gb is 2", "allowed are 1 to 1"),
    ),
    "memory slices that no profile fills": (
        change("memory_slices", 5),
        ("memory_slices is 5", "4g.24gb", "has size 4"),
    ),
    "an id twice": (change("gi_profiles.1.id", 14), ("id 14 is there twice",)),
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
