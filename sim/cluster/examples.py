"""Manifests that fit the products of a simulated cluster, and the steps with them."""

from __future__ import annotations

from collections.abc import Iterable
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


def write_layouts(folder: Path, product: Product) -> Path:
    """Writes layouts for the product as mig-parted generates them; returns the file.

    ``all-<profile>`` has as many slices of a plain profile as fit.
    """
    layouts = {
        f"all-{p.name}": _layout({p.name: count})
        for p in product.gi_profiles
        if "+" not in p.name and "-" not in p.name and (count := _most(p.starts, p.size))
    }
    folder.mkdir(exist_ok=True)
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({"version": "v1", "mig-configs": layouts}, sort_keys=False))
    return path


def _layout(slices: dict[str, int]) -> list[Obj]:
    return [{"devices": "all", "mig-enabled": True, "mig-devices": slices}]


def _most(starts: Iterable[int], size: int) -> int:
    """Number of placements that lie beside each other."""
    count = end = 0
    for start in sorted(starts):
        if start >= end:
            count, end = count + 1, start + size
    return count


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
