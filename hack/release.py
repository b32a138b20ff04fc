"""Release: chart, lists of packages, checksums and provenance, beside the wheel and krew's archive.

Runs the same on a developer's machine and in a pipeline, and needs no network but for packages. It
publishes nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click
import helm_python

from hack.cluster.driver.chart import REPOSITORY, version

CHART = REPOSITORY / "deploy/helm/dra-driver-nvidia-mig"
IMAGES: Mapping[str, str] = {"controller": "controller", "kubelet-plugin": "kubeletplugin"}
"""The extra of the Python package that each image installs (deploy/Dockerfile)."""
SUMS = "SHA256SUMS"
PROVENANCE = "provenance.json"


def sums(files: Iterable[Path]) -> str:
    """The digests as ``sha256sum --check`` reads them."""
    return "".join(f"{digest(each)}  {each.name}\n" for each in sorted(files))


def digest(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def provenance(
    files: Iterable[Path], *, commit: str, dirty: bool, constraints: Path
) -> dict[str, Any]:
    """An in-toto statement (v1) with SLSA's provenance (v1) for ``files``.

    It says what was built from what, and is worth as much as who signs it.
    """
    source = {"uri": "git+.", "digest": {"gitCommit": commit}}
    pins = {"uri": constraints.name, "digest": {"sha256": digest(constraints)}}
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": f.name, "digest": {"sha256": digest(f)}} for f in sorted(files)],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "make release",
                "externalParameters": {"version": version(), "uncommittedChanges": dirty},
                "resolvedDependencies": [source, pins],
            },
            "runDetails": {
                "builder": {"id": f"python {sys.version.split()[0]}, {os.uname().machine}"}
            },
        },
    }


def cyclonedx(folder: Path) -> str:
    """Python with the program that lists packages, in a new environment in ``folder``."""
    venv.create(folder, with_pip=True)
    python = str(folder / "bin/python")
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pins = str(REPOSITORY / "hack/release.txt")
    subprocess.run([*install, "--requirement", pins], check=True)
    return python


def package_list(image: str, folder: Path, *, lister: str) -> Path:
    """Packages of an image's environment as CycloneDX JSON; the same input gives the same file.

    ``lister`` is what ``cyclonedx`` gave.
    """
    target = folder / f"{image}-{version()}.cdx.json"
    with tempfile.TemporaryDirectory() as name:
        venv.create(name, with_pip=True)
        python = str(Path(name) / "bin/python")
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        install += ["--constraint", str(REPOSITORY / "constraints.txt")]
        subprocess.run([*install, f"{REPOSITORY}[{IMAGES[image]}]"], check=True)
        # As in the image, which holds neither.
        remove = [python, "-m", "pip", "uninstall", "--quiet", "--yes", "setuptools", "pip"]
        subprocess.run(remove, check=True)
        command = [lister, "-m", "cyclonedx_py", "environment", "--output-reproducible"]
        command += ["--pyproject", str(REPOSITORY / "pyproject.toml"), "--output-file", str(target)]
        subprocess.run([*command, python], check=True)
    return target


def build_images(folder: Path) -> list[Path]:
    """Archives of the images, by docker or else buildah.

    Raises:
        ClickException: neither is there.
    """
    builder = shutil.which("docker") or shutil.which("buildah")
    if builder is None:
        raise click.ClickException("--images needs docker or buildah on the PATH")
    made = []
    for image in IMAGES:
        name = f"dra-driver-nvidia-mig/{image}:{version()}"
        target = folder / f"{image}-{version()}.tar"
        file = ("--file", str(REPOSITORY / "deploy/Dockerfile"), "--target", image, "--tag", name)
        subprocess.run([builder, "build", *file, str(REPOSITORY)], check=True)
        save = ["save", "--output", str(target), name]
        if Path(builder).name == "buildah":
            save = ["push", name, f"oci-archive:{target}:{name}"]
        target.unlink(missing_ok=True)
        subprocess.run([builder, *save], check=True)
        made.append(target)
    return made


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(REPOSITORY), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@click.command()
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    required=True,
    help="Where wheel and krew's archive are, and where the rest goes.",
)
@click.option("--images", is_flag=True, help="Build the images too, by docker or buildah.")
@click.option("--sign", metavar="KEY", help="Sign the checksums with this key of gpg.")
def main(*, folder: Path, images: bool, sign: str | None) -> None:
    """Complete a release in a folder; what stands in SHA256SUMS belongs to it."""
    made = [*folder.glob(f"*{version()}-*.whl"), *folder.glob("kubectl-mig-*.tar.gz")]
    if len(made) < 2:  # noqa: PLR2004 - the wheel and the archive
        raise click.ClickException(f"{folder} lacks wheel or archive of {version()}: make krew")
    made += [folder / "mig.yaml", Path(helm_python.package(CHART, destination=folder))]
    with tempfile.TemporaryDirectory() as name:
        lister = cyclonedx(Path(name))
        made += [package_list(image, folder, lister=lister) for image in IMAGES]
    if images:
        made += build_images(folder)
    statement = provenance(
        made,
        commit=_git("rev-parse", "HEAD"),
        dirty=bool(_git("status", "--porcelain")),
        constraints=REPOSITORY / "constraints.txt",
    )
    (folder / PROVENANCE).write_text(json.dumps(statement, indent=2) + "\n")
    made.append(folder / PROVENANCE)
    (folder / SUMS).write_text(sums(made))
    if sign:
        command = ["gpg", "--yes", "--local-user", sign, "--armor", "--detach-sign"]
        subprocess.run([*command, str(folder / SUMS)], check=True)
    for line in (folder / SUMS).read_text().splitlines():
        click.echo(line)
    click.echo(f"{SUMS} is {'signed' if sign else 'not signed: --sign KEY'}")


if __name__ == "__main__":
    main()
