"""The Helm chart, rendered without a helm binary."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import helm_python
import yaml

from dra.common.resources import Obj

REPOSITORY = Path(__file__).parents[2]
CHART = REPOSITORY / "deploy/helm/dra-driver-nvidia-mig"
NAMESPACE = "mig-dra-driver"
RELEASE = "mig"


class _StrictLoader(yaml.CSafeLoader):
    """Refuses a key that stands twice in a mapping, as the API server does.

    libyaml's, which reads the chart in 11 ms where Python's takes 78.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if twice := {str(key) for key in keys if keys.count(key) > 1}:
            raise ValueError(f"{', '.join(sorted(twice))} stands twice{node.start_mark}")
        return super().construct_mapping(node, deep)


def render(values: Obj | None = None, *, namespace: str = NAMESPACE) -> list[Obj]:
    """All objects of the chart.

    Raises:
        helm_python.HelmError: the values are refused, or a template fails.
    """
    texts = _rendered(values, namespace=namespace)
    return [
        each
        for name, text in texts.items()
        if not name.endswith(".txt")
        for each in yaml.load_all(text, _StrictLoader)
        if each
    ]


def kubelet_rights(values: Obj | None = None) -> list[Obj]:
    """The chart's objects that let kubelets read claims."""
    return [each for each in render(values) if each["metadata"]["name"].endswith("-kubelet")]


def version() -> str:
    """The chart's appVersion: the tag of the images where none is set."""
    found: Obj = yaml.safe_load((CHART / "Chart.yaml").read_text())
    return str(found["appVersion"])


def notes(values: Obj | None = None) -> str:
    """Notes that helm prints after an installation."""
    (text,) = (
        text
        for name, text in _rendered(values, namespace=NAMESPACE).items()
        if name.endswith(".txt")
    )
    return text


def find(objects: list[Obj], kind: str, suffix: str = "") -> Obj:
    """The only object of a kind whose name ends so."""
    (found,) = (
        each
        for each in objects
        if each["kind"] == kind and each["metadata"]["name"].endswith(suffix)
    )
    return found


def pod_spec(objects: list[Obj], component: str) -> Obj:
    """The pod that the Deployment or DaemonSet of a component makes."""
    (found,) = (
        each
        for each in objects
        if each["kind"] in {"Deployment", "DaemonSet"}
        and each["metadata"]["labels"]["app.kubernetes.io/component"] == component
    )
    spec: Obj = found["spec"]["template"]["spec"]
    return spec


def _rendered(values: Obj | None, *, namespace: str) -> dict[str, str]:
    with helm_python.Chart.load(CHART) as chart:
        return chart.render(values, name=RELEASE, namespace=namespace)
