"""One image of the Dockerfile as a folder: the packages of its extra, the folders that it copies.

Packages are linked from this environment, chosen by their own metadata: nothing that only another
extra needs is there.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hack.cluster.driver.chart import REPOSITORY

DOCKERFILE = REPOSITORY / "deploy/Dockerfile"
_PROJECT = "dra-driver-nvidia-mig"
_OWN = ("api", "cdi", "cli", "controller", "dra", "kubeletplugin", "sim")


@dataclass(frozen=True, slots=True)
class Image:
    """Where the image's files are, and its interpreter."""

    folder: Path
    python: Path


def stages() -> dict[str, dict[str, str]]:
    """Of each stage its instructions, and each directory of ours that it copies, as keys.

    ``extra`` is that of the packages which it installs or copies from another stage.
    """
    found: dict[str, dict[str, str]] = {}
    for line in DOCKERFILE.read_text().splitlines():
        if match := re.fullmatch(r"FROM (\S+) AS (\S+)", line):
            base, name = match.groups()
            found[name] = dict(found.get(base, {})) | {"FROM": base}
        elif match := re.fullmatch(r"COPY (\w+) \1|(USER|ENTRYPOINT) (.+)", line):
            found[name][match[1] or match[2]] = match[3] or ""
        elif match := re.search(r"pip install .*'\.\[(\w+)\]'", line):
            found[name]["extra"] = match[1]
        elif match := re.fullmatch(r"COPY --from=(\S+) /opt/venv /opt/venv", line):
            found[name]["extra"] = found[match[1]]["extra"]
    return found


def build(stage: str, folder: Path) -> Image:
    """The image of a stage, in an empty folder."""
    instructions = stages()[stage]
    for name in _OWN:
        if name in instructions:
            shutil.copytree(REPOSITORY / name, folder / name)
    environment = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (packages,) = environment.glob("lib/python3*/site-packages")
    for package in _needed(instructions["extra"]):
        _link(package, packages)
    return Image(folder, environment / "bin/python")


def _needed(extra: str) -> list[Distribution]:
    """The packages of an extra of ours, with all that they need in turn."""
    found: dict[str, Distribution] = {}
    waiting = [(_PROJECT, frozenset({extra}))]
    done: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in done:
            continue
        done.add((name, extras))
        package = distribution(name)
        found[name] = package
        for text in package.requires or ():
            need = Requirement(text)
            wanted = need.marker is None or any(
                need.marker.evaluate({"extra": each}) for each in extras or {""}
            )
            if wanted:
                waiting.append((canonicalize_name(need.name), frozenset(need.extras)))
    del found[_PROJECT]
    return list(found.values())


def _link(package: Distribution, packages: Path) -> None:
    for file in package.files or ():
        if ".." in file.parts or "__pycache__" in file.parts:
            continue
        place = packages / file
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(Path(str(file.locate())))
