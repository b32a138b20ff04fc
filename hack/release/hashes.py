"""Requirements of the images with the hash of each file that may be installed: ``make hashes``.

The versions are those of ``constraints.txt``; the hashes are those of the package index, for every
platform.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from hack.cluster.driver.chart import REPOSITORY
from hack.release.packages import CONSTRAINTS, IMAGES, requirements, tools

_HEADER = "# Made by make hashes of pyproject.toml and constraints.txt, for deploy/Dockerfile.\n"
_PYTHON = "3.11"
"""Of the images."""


def write(image: str, *, uv: Path) -> None:
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


def main() -> None:
    """Write the files of all images."""
    with tempfile.TemporaryDirectory() as name:
        programs = tools(Path(name))
        for image in IMAGES:
            write(image, uv=programs / "uv")


if __name__ == "__main__":
    main()
