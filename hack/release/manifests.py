"""The chart's objects as one file for ``kubectl apply``: ``make manifests``.

The renderer is a Kubernetes of 1.36 or newer: before that the API server does not know all kinds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import helm_python
import yaml

from dra.common.resources import Obj
from hack.cluster.chart import CHART, NAMESPACE, RELEASE, version

_PRIVILEGED = {"pod-security.kubernetes.io/enforce": "privileged"}


def write(folder: Path, *, registry: str, values: Obj | None = None) -> Path:
    """Write ``install.yaml``: the namespace, and all that the chart makes of ``values``.

    ``registry`` is the prefix of the images; empty is what ``values`` or the chart say.

    Raises:
        HelmError: the values are refused.
    """
    given: dict[str, Any] = dict(values or {})
    if registry:
        given["image"] = {**given.get("image", {}), "registry": registry}
    namespace = {"apiVersion": "v1", "kind": "Namespace"}
    metadata = {"name": NAMESPACE, "labels": _PRIVILEGED}
    with helm_python.Chart.load(CHART) as chart:
        texts = chart.render(given, name=RELEASE, namespace=NAMESPACE)
    parts = [f"# {CHART.name} {version()}, of its chart. Kubernetes 1.36 or newer.\n"]
    parts.append(yaml.safe_dump({**namespace, "metadata": metadata}, sort_keys=False))
    for name, text in texts.items():
        if not name.endswith(".txt") and text.strip():
            parts.append(f"{text.strip().removeprefix('---').lstrip()}\n")
    target = folder / "install.yaml"
    target.write_text("---\n".join(parts))
    return target


@click.command()
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False), required=True)
@click.option("--registry", metavar="HOST/PATH", default="", help="Where the images are.")
@click.option("--values", type=click.File(), help="Values of the chart, as for helm.")
def main(*, folder: Path, registry: str, values: Any) -> None:
    """Write install.yaml into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        given = yaml.safe_load(values) if values else None
        click.echo(write(folder, registry=registry, values=given))
    except helm_python.HelmError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
