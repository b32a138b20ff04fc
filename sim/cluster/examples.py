"""Manifests that fit the products of a simulated cluster, and the steps with them."""

from __future__ import annotations

from pathlib import Path

import yaml

from dra.common.resources import Obj
from dra.gpu.names import class_name
from sim.nvml.products import Product

_TEMPLATE = "whole-gpu"


def write_whole(folder: Path, product: Product, *, gpus: int) -> tuple[Path, str]:
    """Writes pods for a whole GPU each, one more than there are; returns file and last pod."""
    largest = class_name(product.whole.name)
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": _TEMPLATE},
        "spec": {
            "spec": {
                "devices": {
                    "requests": [{"name": "slice", "exactly": {"deviceClassName": largest}}]
                }
            }
        },
    }
    names = [f"whole-{number}" for number in range(1, gpus + 2)]
    folder.mkdir(exist_ok=True)
    path = folder / "whole.yaml"
    path.write_text(yaml.safe_dump_all([template, *map(_pod, names)], sort_keys=False))
    return path, names[-1]


def _pod(name: str) -> Obj:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": _TEMPLATE}],
            "containers": [
                {
                    "name": "main",
                    "image": "ubuntu:24.04",
                    "command": ["sleep", "infinity"],
                    "resources": {"claims": [{"name": "gpu"}]},
                }
            ],
        },
    }
