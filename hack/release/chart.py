"""Chart of a release: its archive, and the same as an artefact of a registry (OCI)."""

from __future__ import annotations

from pathlib import Path

import helm_python

from hack.cluster.driver.chart import CHART, version


def package(folder: Path) -> Path:
    """The archive that ``helm install`` takes."""
    return Path(helm_python.package(CHART, destination=folder))


def push(
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
