"""Links lead to pages and headings that exist: those of pages, and addresses in messages."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra.common.program import HANDBOOK

ROOT = Path(__file__).parents[2]
PACKAGES = ("api", "cdi", "cli", "controller", "dra", "kubeletplugin")
CHART = ROOT / "deploy/helm/dra-driver-nvidia-mig"
_PATH = re.compile(r"\b(docs|deploy|api/crds|hack)/\w|\bhandbook\b", re.IGNORECASE)
_ADDRESS = re.compile(re.escape(HANDBOOK) + r"/([\w#.-]+)")


@functools.cache
def trees() -> list[tuple[str, ast.Module]]:
    paths = (p for package in PACKAGES for p in sorted((ROOT / package).rglob("*.py")))
    return [(str(path.relative_to(ROOT)), ast.parse(path.read_text())) for path in paths]


def named() -> Iterator[str]:
    """The pages that the programs and the chart send people to."""
    for _, tree in trees():
        for node in ast.walk(tree):
            match node:
                case ast.Call(func=ast.Name(id="page"), args=[ast.Constant(value=str(name))]):
                    yield name
    for file in CHART.rglob("*"):
        if file.is_file():
            yield from _ADDRESS.findall(file.read_text())


def messages(tree: ast.Module) -> Iterator[ast.Constant]:
    """The strings of a module but those that stand by themselves, which are for its readers."""
    nodes = list(ast.walk(tree))
    alone = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and id(node) not in alone:
            yield node


def anchor_of(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def headings(page: Path) -> set[str]:
    """The anchors of a page."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return {anchor_of(heading) for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}


PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_to_a_file_and_a_heading_of_it(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if not link.startswith("https://"):
            name, _, anchor = link.partition("#")
            target = page.parent / name if name else page
            assert target.exists(), link
            assert not anchor or anchor in headings(target), link


def test_every_address_is_that_of_a_page_and_a_heading_of_it() -> None:
    found = sorted(set(named()))
    assert len(found) > 6
    for name in found:
        file, _, anchor = name.partition("#")
        assert not anchor or anchor in headings(ROOT / "docs" / file), name


def test_no_message_sends_people_to_a_file_of_the_repository() -> None:
    found = [
        f"{path}:{node.lineno}: {node.value!r}: name the page by dra/common/program.py:page"
        for path, tree in trees()
        for node in messages(tree)
        if isinstance(node.value, str)
        if path != "dra/common/program.py" and _PATH.search(node.value)
    ]
    for file in sorted(CHART.rglob("*.*")):
        found += [
            f"{file.name}: {line.strip()}: name the page by its address, {HANDBOOK}/..."
            for line in file.read_text().splitlines()
            if re.search(r"(?<!/main/)\bdocs/\w", line)
        ]
    assert found == []
