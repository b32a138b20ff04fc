"""Packages of the images: the files that pin them by hash, and their lists as CycloneDX.

Run as a program (``make hashes``) it writes the former anew.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping
from pathlib import Path

from hack.cluster.chart import REPOSITORY, version

IMAGES: Mapping[str, str] = {"controller": "controller", "kubelet-plugin": "kubeletplugin"}
"""The extra of the Python package whose packages each image has."""
CONSTRAINTS = REPOSITORY / "constraints.txt"
_TOOLS = Path(__file__).with_name("tools.txt")


def requirements(image: str) -> Path:
    """The file that pins an image's packages by hash (deploy/Dockerfile installs it)."""
    return REPOSITORY / f"deploy/requirements/{image}.txt"


def tools(folder: Path) -> Path:
    """The programs of a release, in a new environment in ``folder``: its directory of programs."""
    venv.create(folder)
    install(folder, "--requirement", str(_TOOLS))
    return folder / "bin"


def install(environment: Path, *arguments: str) -> None:
    """Install into an environment that need not have pip."""
    command = [sys.executable, "-m", "pip", "--python", str(environment / "bin/python"), "install"]
    subprocess.run([*command, "--quiet", "--disable-pip-version-check", *arguments], check=True)


def package_list(image: str, folder: Path, *, programs: Path) -> Path:
    """Packages of an image's environment as CycloneDX JSON; the same input gives the same file.

    ``programs`` is what ``tools`` gave.
    """
    target = folder / f"{image}-{version()}.cdx.json"
    with tempfile.TemporaryDirectory() as name:
        venv.create(name)
        # As in deploy/Dockerfile.
        options = ("--require-hashes", "--no-deps", "--only-binary", ":all:")
        install(Path(name), *options, "--requirement", str(requirements(image)))
        command = [str(programs / "python"), "-m", "cyclonedx_py", "environment"]
        command += ["--output-reproducible", "--pyproject", str(REPOSITORY / "pyproject.toml")]
        subprocess.run([*command, "--output-file", str(target), f"{name}/bin/python"], check=True)
    return target


_HEADER = "# Made by make hashes of pyproject.toml and constraints.txt, for deploy/Dockerfile.\n"
_PYTHON = "3.11"
"""Of the images."""


def write_hashes(image: str, *, uv: Path) -> None:
    """Write the file of an image, with ``uv``."""
    target = requirements(image)
    command = [str(uv), "pip", "compile", "--quiet", "--no-header", "--no-annotate"]
    command += ["--generate-hashes", "--no-emit-index-url", "--no-emit-find-links"]
    command += ["--python-version", _PYTHON, "--python-platform", "linux"]
    command += ["--constraint", str(CONSTRAINTS), "--extra", IMAGES[image]]
    with tempfile.TemporaryDirectory() as name:
        made = Path(name, "requirements.txt")
        command += ["--output-file", str(made), str(REPOSITORY / "pyproject.toml")]
        subprocess.run(command, check=True)
        target.write_text(_HEADER + made.read_text())


def write_all_hashes() -> None:
    """Write the files of all images."""
    with tempfile.TemporaryDirectory() as name:
        programs = tools(Path(name))
        for image in IMAGES:
            write_hashes(image, uv=programs / "uv")


if __name__ == "__main__":
    write_all_hashes()
