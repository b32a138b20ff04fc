"""The targets of the Makefile: what they would run, and that pages name only those that exist."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, files, metadata, version
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from tests.deploy.images.test_images import needed

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))


def dry(*arguments: str) -> str:
    """What make would run; the environment counts as made."""
    made = [f"--old-file=.venv/{name}" for name in (".runtime", ".dev")]
    done = subprocess.run(
        ["make", "--dry-run", *made, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return " ".join(done.stdout.replace("\\\n", " ").split())


@pytest.mark.parametrize(
    ("arguments", "runs"),
    [
        (["up"], "-m sim up"),
        (
            ["up", "PRODUCT=H200", "NODES=3", "GPUS=4", "DIR=/tmp/x"],
            "-m sim up --product 'H200' --nodes '3' --gpus '4' --dir '/tmp/x'",
        ),
        (["cluster", "NODES=1", "DIR=/tmp/y"], "-m hack.cluster --nodes '1' --dir '/tmp/y'"),
        (
            ["manifests", "REGISTRY=host/path", "VALUES=v.yaml"],
            "-m hack.release.manifests --folder dist --registry 'host/path' --values 'v.yaml'",
        ),
        (["release", "REGISTRY=host/path"], "-m hack.release --folder dist --registry 'host/path'"),
    ],
)
def test_variables_become_options(arguments: list[str], runs: str) -> None:
    assert runs in dry(*arguments)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_only_targets_that_exist(page: Path) -> None:
    rules = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    named = set(re.findall(r"(?:`|^|\()make ([a-z-]+)", page.read_text(), flags=re.MULTILINE))
    assert named <= set(rules)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_lets_a_stranger_type_does_not_need_an_environment_that_is_on(
    page: Path,
) -> None:
    blocks = re.findall(r"<!-- runs: \w+ -->\n```sh\n(.*?)```", page.read_text(), flags=re.DOTALL)
    typed = [line for block in blocks for line in block.splitlines()]
    assert [line for line in typed if line.startswith(("python -m sim", "python -m hack"))] == []


@pytest.mark.parametrize("target", ["cluster", "krew"])
def test_what_renders_the_chart_has_the_developers_environment(target: str) -> None:
    """In a fresh clone nothing else has made it."""
    wanted = subprocess.run(
        ["make", "--dry-run", "--always-make", target],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "hack/environment.py '.[dev]'" in wanted


def modules_of_a_stranger() -> set[str]:
    """Modules that ``make up`` installs: of the package's needs with its extras, in turn."""
    found = re.search(r"environment\.py '\.\[([\w,]+)\]'", (ROOT / "Makefile").read_text())
    assert found is not None
    packages = {name for extra in found[1].split(",") for name in needed(extra)}
    return {file.parts[0].partition(".")[0] for name in packages for file in files(name) or ()}


def imported(path: Path) -> Iterator[str]:
    """Top-level modules that a file imports, also by name at run time."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (each.name.partition(".")[0] for each in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module.partition(".")[0]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            first = node.args[0]
            if isinstance(first, ast.Constant):
                yield str(first.value).partition(".")[0]


def test_the_simulator_imports_nothing_that_make_up_does_not_install() -> None:
    own = {path.name for path in ROOT.iterdir() if path.is_dir()}
    modules = {name for path in (ROOT / "sim").rglob("*.py") for name in imported(path)}
    modules -= own | sys.stdlib_module_names
    assert modules - modules_of_a_stranger() == set()


def test_every_pinned_package_can_be_had_with_the_oldest_python() -> None:
    """An environment that has another version than the pinned one says nothing of that one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest = project["requires-python"].removeprefix(">=") + ".0"
    pins = (line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    found = [(name, metadata(name)) for name, pin in pins if installed(name) == pin]
    assert len(found) > 50
    wanted = {name: about["Requires-Python"] or "" for name, about in found}
    newer = {name: text for name, text in wanted.items() if oldest not in SpecifierSet(text)}
    assert not newer, f"constraints.txt has versions that Python {oldest} cannot install: {newer}"


def installed(name: str) -> str:
    with suppress(PackageNotFoundError):
        return version(name)
    return ""
