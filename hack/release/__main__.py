"""Release: chart, install.yaml, packages and checksums, beside wheel and krew's archive.

Runs the same on a developer's machine and in a pipeline. Without ``--push`` it publishes nothing,
and needs no network but for packages and the images' base.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

import click
import helm_python

from hack.cluster.chart import CHART, REPOSITORY, version
from hack.release import manifests
from hack.release.packages import IMAGES, package_list, tools


def sums(files: Iterable[Path]) -> str:
    """The digests as ``sha256sum --check`` reads them."""
    return "".join(f"{digest(each)}  {each.name}\n" for each in sorted(files))


def digest(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def package_chart(folder: Path) -> Path:
    """The archive that ``helm install`` takes."""
    return Path(helm_python.package(CHART, destination=folder))


def push_chart(
    archive: Path, target: str, *, credentials: Path | None = None, plain: bool = False
) -> str:
    """Push the archive below ``target``; returns the reference by digest.

    Args:
        archive: what ``package`` made.
        target: ``oci://host/path``, to which Helm appends the chart's name.
        credentials: file of logins; None is that of ``helm registry login``.
        plain: HTTP instead of HTTPS.

    Raises:
        HelmError: the registry does not answer, or refuses.
    """
    with helm_python.RegistryClient(plain_http=plain, credentials_file=credentials) as client:
        client.push(archive, target, plain_http=plain)
        name = f"{target.rstrip('/')}/{CHART.name}"
        return f"{name}@{client.resolve(f'{name}:{version()}')['digest']}"


SUMS = "SHA256SUMS"
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
    made += [folder / "mig.yaml", archive := package_chart(folder)]
    made.append(manifests.write(folder, registry=registry))
    with tempfile.TemporaryDirectory() as name:
        programs = tools(Path(name))
        made += [package_list(image, folder, programs=programs) for image in IMAGES]
    if base:
        made += build_images(folder, base=base)
    (folder / SUMS).write_text(sums(made))
    if sign:
        command = ["gpg", "--yes", "--local-user", sign, "--armor", "--detach-sign"]
        subprocess.run([*command, str(folder / SUMS)], check=True)
    for line in (folder / SUMS).read_text().splitlines():
        click.echo(line)
    click.echo(f"{SUMS} is {'signed' if sign else 'not signed: --sign KEY'}")
    if push:
        try:
            click.echo(f"pushed {push_chart(archive, push)}")
        except helm_python.HelmError as error:
            raise click.ClickException(f"the chart could not be pushed: {error}") from error


if __name__ == "__main__":
    main()
