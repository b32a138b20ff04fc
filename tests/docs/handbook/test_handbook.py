"""The handbook builds without a broken link, and its blocks say whether they are run."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import msgspec
import pytest
import yaml

from api.config import MigDeviceConfig
from hack.cluster.chart import render
from tests.docs.handbook.blocks import PAGES, ROOT, Block, blocks
from tests.dra.cel.test_alike import described, every_kind_of_device

SHELL = [b for page in PAGES for b in blocks(page) if b.language in {"sh", "bash", "shell"}]
MANIFESTS = [b for page in PAGES for b in blocks(page) if b.language == "yaml"]
SHORTEST_REASON = 15


def words(struct: type[msgspec.Struct], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The paths of a struct's fields with each word of those that take words of a list."""
    for field in msgspec.structs.fields(struct):
        path = f"{prefix}{field.encode_name}"
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from words(field.type, f"{path}.")
        else:
            kind = msgspec.inspect.type_info(field.type)
            inner = getattr(kind, "item_type", kind)
            for value in getattr(inner, "values", ()):
                yield path, str(value)


def fields(struct: type[msgspec.Struct], prefix: str = "") -> Iterator[str]:
    """The paths of a struct's fields, as users write them."""
    for field in msgspec.structs.fields(struct):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from fields(field.type, f"{prefix}{field.encode_name}.")
        else:
            yield f"{prefix}{field.encode_name}"


def test_it_builds_and_no_link_is_broken(tmp_path: Path) -> None:
    mkdocs = str(Path(sys.executable).parent / "mkdocs")  # as make docs calls it
    command = [mkdocs, "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "first-pod/index.html").is_file()


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs/index.md").read_text().partition("## All pages")[2]
    missing = [p.name for p in sorted((ROOT / "docs").glob("*.md")) if f"({p.name})" not in index]
    assert missing == ["index.md"], f"docs/index.md, 'All pages', lacks a row for: {missing}"


@pytest.mark.parametrize("block", SHELL, ids=lambda b: b.place)
def test_commands_say_whether_they_are_run_and_why_not(block: Block) -> None:
    if block.kind == "not run":
        assert len(block.argument) > SHORTEST_REASON
    else:
        assert (block.kind, block.argument) in {("runs", "cluster"), ("runs", "make")}


@pytest.mark.parametrize("block", MANIFESTS, ids=lambda b: b.place)
def test_manifests_say_what_they_are(block: Block) -> None:
    assert block.kind in {"file", "values", "excerpt"}
    assert list(yaml.safe_load_all(block.text))


@pytest.mark.parametrize(
    "block", [b for b in MANIFESTS if b.kind == "values"], ids=lambda b: b.place
)
def test_values_are_values_of_the_chart(block: Block) -> None:
    assert render(yaml.safe_load(block.text))


def test_the_objects_of_an_installation_are_counted_by_kind() -> None:
    page = (ROOT / "docs/install.md").read_text()
    section = page.partition("### What is installed")[2].partition("\n## ")[0]
    found = re.findall(r"^\| ([\d, ]+) \| ([A-Z][\w, ]+) \|", section, re.MULTILINE)
    listed = {
        kind: int(number)
        for numbers, kinds in found
        for number, kind in zip(numbers.split(", "), kinds.split(", "), strict=True)
    }
    assert listed == Counter(each["kind"] for each in render())


def test_every_right_of_the_controller_is_named_in_the_page_on_security() -> None:
    """Resources by the words of their kinds: ``podgroups`` are PodGroups."""
    page = (ROOT / "docs/security.md").read_text().partition("| controller |")[2].partition("\n")[0]
    words = page.lower().replace(" ", "")
    rules = [
        rule
        for each in render({"nodeLabels": {"enabled": True}, "preemption": {"enabled": True}})
        if each["kind"] in {"ClusterRole", "Role"} and "controller" in each["metadata"]["name"]
        for rule in each["rules"]
    ]
    resources = {r.partition("/")[0] for rule in rules for r in rule["resources"]}
    known = {"persistentvolumeclaims": "theirclaims", "resourceclaims": "claims"}
    assert len(resources) > 10
    missing = {r for r in resources if known.get(r, r).removesuffix("s") not in words}
    assert not missing, f"docs/security.md, row of the controller: name {sorted(missing)}"


def test_every_field_of_the_configuration_is_documented() -> None:
    page = (ROOT / "docs/configuration.md").read_text()
    missing = {f for f in fields(MigDeviceConfig) if f"\n| `{f}` |" not in page}
    missing -= {"apiVersion", "kind"}
    assert not missing, f"docs/configuration.md: give a row to {sorted(missing)}, as | `field` |"


WORDS = [w for w in words(MigDeviceConfig) if w[0] not in {"apiVersion", "kind"}]


@pytest.mark.parametrize(("field", "word"), WORDS)
def test_every_word_that_a_field_of_the_configuration_takes_is_documented(
    field: str, word: str
) -> None:
    page = (ROOT / "docs/configuration.md").read_text()
    _, found, rest = page.partition(f"\n| `{field}` |")
    lines = (found + rest).partition("\n\n")[0].strip().splitlines()
    rows = [*lines[:1], *takewhile(lambda line: line.startswith("| | "), lines[1:])]
    assert any(f"`{word}`" in row.split("|")[2] for row in rows), (
        f"docs/configuration.md says nothing of {field}: {word}; give it a row below `{field}`:\n"
        f"| | `{word}` | ... |"
    )


@pytest.mark.parametrize("column", ["attributes", "capacity"])
def test_what_selectors_can_ask_is_documented(column: str) -> None:
    """By name, and no other names."""
    page = (ROOT / "docs/configuration.md").read_text()
    table = page.partition("## What selectors can ask\n")[2].partition("\n| of |")[2]
    place = ("attributes", "capacity").index(column) + 2
    cells = [row.split("|")[place] for row in table.partition("\n\n")[0].splitlines()[2:]]
    told = {name for cell in cells for name in re.findall(r"`([\w-]+)`", cell)}
    told -= {"mig", "gpu", "mig-share", "gpu-share"}  # words of the attribute `type`
    names = {
        name
        for node in every_kind_of_device()
        for device in described(node.gpus[0], node).values()
        for known in device[column].values()
        for name in known
    }
    assert told == names, (
        f"docs/configuration.md, 'What selectors can ask': add {sorted(names - told)}, "
        f"remove {sorted(told - names)} (dra/gpu/devices.py has them)"
    )
