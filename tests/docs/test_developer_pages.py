"""The pages for developers name files, functions and rooms that exist, and leave out no room."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

from hack.handbook import on_page_markdown

ROOT = Path(__file__).parents[2]
ARCHITECTURE = ROOT / "docs/architecture.md"
PAGES = (ARCHITECTURE, ROOT / "docs/developing.md")
TOP = ("api", "cdi", "dra", "controller", "kubeletplugin", "cli", "sim", "hack")
TOPS = {*TOP, "tests", "deploy"}
_SPAN = re.compile(r"`([\w.-]+/[\w./-]*)(?::([\w.]+))?`")
_FILE = re.compile(r"`([\w-]+\.(?:toml|md|yml|txt))`")
_TEST = re.compile(r"(?<![\w/-])((?:[a-z_]+/)+test_\w+\.py)")


def tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode == 0:
        return [Path(line) for line in listed.stdout.splitlines() if (ROOT / line).exists()]
    return [path.relative_to(ROOT) for top in TOP for path in (ROOT / top).rglob("*.py")]


def rooms() -> list[Path]:
    """The packages, but for the versions of kubelet's protocols."""
    packages = {path.parent for path in tracked() if path.name == "__init__.py"}
    return sorted(
        p
        for p in packages
        if p.parts[0] in TOP and p != Path("hack") and p.parts[:2] != ("api", "kubelet")
    )


def places(page: Path) -> list[tuple[str, str]]:
    """Path and name within the file, empty without, of each that a page names.

    In a room's row a name with a slash behind it, such as ``search/``, is of a room within.
    """
    found = set()
    for line in page.read_text().splitlines():
        room = re.match(r"\| `([\w/-]+)/` \|", line)
        for path, name in _SPAN.findall(line):
            inner = room and path.endswith("/") and path.count("/") == 1 and path[:-1] not in TOPS
            found.add((f"{room[1]}/{path}" if room and inner else path, name))
        found |= {(name, "") for name in _FILE.findall(line)}
    return sorted(found)


def defined(path: Path) -> set[str]:
    """The classes and functions of a module, members as ``Class.member``."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
            for member in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(member, ast.FunctionDef):
                    found.add(f"{node.name}.{member.name}")
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {t.id for t in targets if isinstance(t, ast.Name)}
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_and_name_that_a_page_gives_exists(page: Path) -> None:
    named = places(page)
    assert len(named) > 10
    wrong = []
    for path, name in named:
        if not (ROOT / path).exists():
            wrong.append(f"docs/{page.name} names {path}, which does not exist: correct the page")
        elif name and name not in defined(ROOT / path):
            wrong.append(f"docs/{page.name} names {name}, which {path} does not define: correct it")
    assert not wrong, "\n".join(wrong)


def test_every_room_has_its_line() -> None:
    page = on_page_markdown(ARCHITECTURE.read_text())
    missing = [str(room) for room in rooms() if f"\n| `{room}/` | " not in page]
    assert missing == [], f"say in the docstring of its __init__.py what is in each of {missing}"


def test_every_test_that_a_page_names_exists() -> None:
    """Pages name tests from the repository's root or from `tests`."""
    pages = [*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")]
    named = [(p, name) for p in pages for name in _TEST.findall(p.read_text())]
    assert len(named) > 20
    missing = {
        f"{page.relative_to(ROOT)} names {name}, which does not exist: correct the page"
        for page, name in named
        if not ((ROOT / name).exists() or (ROOT / "tests" / name).exists())
    }
    assert not missing, "\n".join(sorted(missing))
