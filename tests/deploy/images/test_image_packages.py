"""Packages of the images: pinned by hash, no more than the programs need, and of a bounded size."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hack.cluster.chart import REPOSITORY
from hack.release.packages import CONSTRAINTS, IMAGES, requirements
from tests.deploy.images.imagefiles import installed, pinned, stages

MOST_MB = {"controller": 40, "kubelet-plugin": 27, "simulator": 27}
"""Of the packages of an image, without compiled Python: as much as their source once more."""


def needed(extra: str) -> dict[str, str]:
    """The packages of an extra of ours with all that they need in turn; the version of each."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    waiting = [*project["dependencies"], *project["optional-dependencies"][extra]]
    found: dict[str, str] = {}
    while waiting:
        name = canonicalize_name(Requirement(waiting.pop()).name)
        if name not in found:
            package = distribution(name)
            found[name] = package.version
            waiting += [each for each in package.requires or () if wanted(Requirement(each))]
    return found


def wanted(need: Requirement) -> bool:
    return need.marker is None or need.marker.evaluate({"extra": ""})


@pytest.mark.parametrize(("image", "extra"), IMAGES.items())
def test_an_image_has_what_its_program_needs_in_the_versions_of_the_constraints(
    image: str, extra: str
) -> None:
    """If this fails: make hashes."""
    lines = CONSTRAINTS.read_text().splitlines()
    versions = {str(canonicalize_name(n)): v for n, _, v in (each.split("=") for each in lines)}
    packages = pinned(image)
    assert packages.keys() == needed(extra).keys()
    assert packages == {name: versions[name] for name in packages}


@pytest.mark.parametrize("image", IMAGES)
def test_every_package_of_an_image_is_pinned_by_hash_and_by_nothing_of_a_host(image: str) -> None:
    comment, *lines = requirements(image).read_text().splitlines()
    assert comment.startswith("# Made by make hashes")
    package = r"[\w.-]+==[\w.]+ \\\n(    --hash=sha256:[0-9a-f]{64}( \\)?\n)+"
    assert re.fullmatch(f"({package})+", "\n".join([*lines, ""]))


@pytest.mark.parametrize("image", IMAGES)
def test_the_dockerfile_installs_the_list_and_nothing_without_a_hash(image: str) -> None:
    assert stages()[image]["packages"] == image
    text = (REPOSITORY / "deploy/Dockerfile").read_text()
    installed = re.findall(r"\bpip .*\binstall (.*) \\", text)
    assert installed == [f"--requirement {each}.txt" for each in IMAGES]
    for setting in ("PIP_REQUIRE_HASHES=1", "PIP_NO_DEPS=1", "PIP_ONLY_BINARY=:all:"):
        assert setting in text


@pytest.mark.parametrize("stage", MOST_MB)
def test_the_packages_of_an_image_are_small(stage: str) -> None:
    sizes: Counter[str] = Counter()
    for file in installed(stage):
        sizes[file.parts[0]] += Path(str(file.locate())).stat().st_size
    assert sizes.total() / 1e6 < MOST_MB[stage], sizes
