"""One image of the Dockerfile as a folder: the packages of its list, the folders that it copies.

Packages are linked from this environment: nothing that the list lacks is there.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackagePath, distribution
from pathlib import Path

from hack.cluster.chart import REPOSITORY
from hack.release.packages import requirements

DOCKERFILE = REPOSITORY / "deploy/Dockerfile"
_LISTS = ("packages", "removed")
_OWN = ("api", "cdi", "cli", "controller", "dra", "kubeletplugin", "sim")


@dataclass(frozen=True, slots=True)
class Image:
    """Where the image's files are, and its interpreter."""

    folder: Path
    python: Path


def stages() -> dict[str, dict[str, str]]:
    """Of each stage its instructions, and each directory of ours that it copies, as keys.

    ``packages`` names the list of what it installs or copies from another stage, ``removed`` what
    it then takes out of that.
    """
    found: dict[str, dict[str, str]] = {}
    for line in DOCKERFILE.read_text().splitlines():
        if match := re.fullmatch(r"FROM (\S+) AS (\S+)", line):
            base, name = match.groups()
            found[name] = dict(found.get(base, {})) | {"FROM": base}
        elif match := re.fullmatch(r"COPY (\w+) \1|(USER|ENTRYPOINT) (.+)", line):
            found[name][match[1] or match[2]] = match[3] or ""
        elif match := re.search(r"pip .*install --requirement (\S+)\.txt", line):
            found[name]["packages"] = match[1]
        elif match := re.search(r"rm -r /opt/venv/lib/python3\.\*/site-packages/(\S+)", line):
            found[name]["removed"] = match[1]
        elif match := re.fullmatch(r"COPY --from=(\S+) /opt/venv /opt/venv", line):
            found[name] |= {k: found[match[1]][k] for k in _LISTS if k in found[match[1]]}
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
    for file in installed(stage):
        _link(file, packages)
    return Image(folder, environment / "bin/python")


def pinned(image: str) -> dict[str, str]:
    """The packages of an image's list, by name; the version of each."""
    return dict(re.findall(r"^(\S+)==(\S+) ", requirements(image).read_text(), re.MULTILINE))


def installed(stage: str) -> list[PackagePath]:
    """Files of the packages of a stage in its environment, without programs and caches."""
    given = stages()[stage]
    return [
        file
        for name in pinned(given["packages"])
        for file in distribution(name).files or ()
        if not {"..", "__pycache__"}.intersection(file.parts)
        and not file.is_relative_to(given.get("removed", "/"))
    ]


def _link(file: PackagePath, packages: Path) -> None:
    place = packages / file
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(Path(str(file.locate())))
