"""Release: chart, install.yaml, packages, checksums, provenance, beside wheel and krew's archive.

Runs the same on a developer's machine and in a pipeline. Without ``--push`` it publishes nothing,
and needs no network but for packages and the images' base.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from pathlib import Path

import click
import helm_python

from hack.cluster.driver.chart import REPOSITORY, version
from hack.release import chart, manifests
from hack.release.packages import CONSTRAINTS, IMAGES, package_list, requirements, tools
from hack.release.provenance import provenance, sums

SUMS = "SHA256SUMS"
PROVENANCE = "provenance.json"
_BY_DIGEST = re.compile(r"[^@]+@sha256:[0-9a-f]{64}")


def build_images(folder: Path, *, base: str) -> list[Path]:
    """Archives of the images, by docker or else buildah.

    Raises:
        ClickException: neither is there, or a build failed.
    """
    script = [str(REPOSITORY / "hack/images.sh"), "--base", base, "--archive", str(folder)]
    if subprocess.run([*script, *IMAGES], check=False).returncode:
        raise click.ClickException("hack/images.sh has failed, and says above why")
    return [folder / f"{image}-{version()}.tar" for image in IMAGES]


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(REPOSITORY), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _base(_: click.Context, __: click.Parameter, value: str | None) -> str:
    if value and not _BY_DIGEST.fullmatch(value):
        raise click.BadParameter(
            f"'{value}' names no digest: a tag may be another image tomorrow; give "
            "NAME:TAG@sha256:DIGEST, which 'docker buildx imagetools inspect NAME:TAG' prints"
        )
    return value or ""


@click.command()
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    required=True,
    help="Where wheel and krew's archive are, and where the rest goes.",
)
@click.option(
    "--base",
    metavar="IMAGE@DIGEST",
    callback=_base,
    help="Build the images too, on this one, by docker or buildah.",
)
@click.option("--sign", metavar="KEY", help="Sign the checksums with this key of gpg.")
@click.option("--push", metavar="oci://HOST/PATH", help="Push the chart there.")
@click.option(
    "--registry", metavar="HOST/PATH", default="", help="Where install.yaml has the images from."
)
def main(*, folder: Path, base: str, sign: str | None, push: str | None, registry: str) -> None:
    """Complete a release in a folder; what stands in SHA256SUMS belongs to it."""
    made = [*folder.glob(f"*{version()}-*.whl"), *folder.glob("kubectl-mig-*.tar.gz")]
    if len(made) < 2:  # noqa: PLR2004 - the wheel and the archive
        raise click.ClickException(f"{folder} lacks wheel or archive of {version()}: make krew")
    made += [folder / "mig.yaml", archive := chart.package(folder)]
    made.append(manifests.write(folder, registry=registry))
    with tempfile.TemporaryDirectory() as name:
        programs = tools(Path(name))
        made += [package_list(image, folder, programs=programs) for image in IMAGES]
    if base:
        made += build_images(folder, base=base)
    statement = provenance(
        made,
        commit=_git("rev-parse", "HEAD"),
        dirty=bool(_git("status", "--porcelain")),
        pins=[CONSTRAINTS, *map(requirements, IMAGES)],
        base=base,
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
    if push:
        try:
            click.echo(f"pushed {chart.push(archive, push)}")
        except helm_python.HelmError as error:
            raise click.ClickException(f"the chart could not be pushed: {error}") from error


if __name__ == "__main__":
    main()
