"""The chart with values that together turn everything on and off."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path

import helm_python
import yaml

from dra.common.resources import Obj
from hack.cluster.chart import CHART, NAMESPACE, RELEASE, find, render

VALUES: dict[str, Obj] = {
    "defaults": {},
    "simulated": {
        "simulated": {"enabled": True, "nodes": {"one": ["A30"], "two": ["B200", "A30"]}},
        "image": {"registry": "registry.example:5000/gpu", "pullSecrets": ["pull"]},
    },
    "scheduler": {"allocator": "scheduler", "driverName": "other.example.com"},
    "everything": {
        "fullnameOverride": "gpu-slices",
        "controller": {
            "tolerations": [{"key": "infra", "operator": "Exists", "effect": "NoSchedule"}],
            "affinity": {"podAntiAffinity": {}},
            "nodeSelector": {"role": "infra"},
            "podLabels": {"team": "gpu", "app.kubernetes.io/name": "mine"},
            "podAnnotations": {"note": "1"},
            "podDisruptionBudget": {"maxUnavailable": "50%"},
        },
        "kubeletPlugin": {
            "driverRoot": "/run/nvidia/driver",
            "kubeletRoot": "/srv/kubelet",
            "nodeSelector": {"gpu": "yes"},
            "podLabels": {"team": "gpu"},
            "podAnnotations": {"note": "1"},
            "maxSurge": "10%",
            "image": {"tag": "v1"},
        },
        "metrics": {
            "port": 9400,
            "podMonitor": {"enabled": True, "labels": {"release": "prom"}},
            "objectives": {"enabled": True, "labels": {"release": "prom"}},
            "dashboard": {"enabled": True},
        },
        "networkPolicy": {
            "metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]
        },
        "nodeLabels": {"enabled": True},
        "nodeClasses": {
            "classes": {"default": {"mode": "whole", "migMode": "switch"}},
            "configMaps": ["mig-parted"],
        },
        "finalizerAtCreation": {"classes": ["team-slices", "other.example.com"]},
    },
    "renamed": {
        "driverName": "other.example.com",
        "nodeClasses": {"classes": {"default": {}}, "configMaps": ["mig-parted"]},
    },
    "bare": {
        "crd": {"install": False},
        "admissionPolicies": {"enabled": False},
        "finalizerAtCreation": {"enabled": False},
        "networkPolicy": {"enabled": False},
        "controller": {"podDisruptionBudget": {"enabled": False}, "replicas": 1},
        "kubeletPlugin": {
            "nodeSelectorTerms": [],
            "nodeRequirements": [],
            "tolerations": [],
            "maxSurge": 0,
            "maxUnavailable": "25%",
        },
    },
}

MONITORING = "monitoring.coreos.com/v1"
COMPONENTS = ("controller", "kubelet-plugin")


def rendered_for(
    directory: Path, version: str, values: Obj | None = None, *, beta: bool = False
) -> list[Obj]:
    """The chart's objects for a Kubernetes. ``beta``: it serves MutatingAdmissionPolicies as such.

    ``directory`` takes a copy of the chart: the renderer knows one version of Kubernetes.
    """
    chart = directory / "chart"
    shutil.copytree(CHART, chart)
    helpers = chart / "templates" / "_helpers.tpl"
    text = helpers.read_text()
    policies = 'Has "admissionregistration.k8s.io/v1beta1/MutatingAdmissionPolicy"'
    for known, older in (
        (".Capabilities.KubeVersion.Version", f'"v{version}.0"'),
        (f".Capabilities.APIVersions.{policies}", str(beta).lower()),
    ):
        assert known in text
        text = text.replace(known, older)
    helpers.write_text(text)
    with helm_python.Chart.load(chart) as loaded:
        texts = loaded.render(values or {}, name=RELEASE, namespace=NAMESPACE)
    texts = {name: text for name, text in texts.items() if not name.endswith("NOTES.txt")}
    return [each for text in texts.values() for each in yaml.safe_load_all(text) if each]


@functools.cache
def rendered(name: str) -> list[Obj]:
    return render(VALUES[name])


def containers(objects: list[Obj]) -> list[Obj]:
    """Those of all workloads, each with its pod's security context under its own."""
    kinds = {"Deployment", "DaemonSet"}
    specs = [each["spec"]["template"]["spec"] for each in objects if each["kind"] in kinds]
    return [
        {**each, "securityContext": {**spec.get("securityContext", {}), **each["securityContext"]}}
        for spec in specs
        for each in [*spec.get("initContainers", []), *spec["containers"]]
    ]


def rules(objects: list[Obj], component: str) -> list[Obj]:
    found: list[Obj] = find(objects, "ClusterRole", component)["rules"]
    return found
