"""Pods of gangs on a bench of the controller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dra.common.resources import RESOURCE_CLAIMS, Obj, Resource
from dra.gangs.membership import COUNT_LABEL, NAME_LABEL
from dra.kube.errors import InvalidError, KubeError
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import claim, pod, request

NODES = ("node-a", "node-b", "node-c")
"""Room for six slices of three compute slices: one gang of four, and half of another."""


def create(
    bench: Bench, gang: str, *numbers: int, size: str = "4", profile: str = "3g.20gb", **spec: Any
) -> None:
    for number in numbers:
        name = f"{gang}-{number}"
        body = pod(name, name, **spec)
        body["metadata"]["labels"] = {NAME_LABEL: gang, COUNT_LABEL: size}
        bench.claim(claim(name, request("r", f"mig-{profile}")))
        bench.pod(body)


def held(bench: Bench, gang: str) -> list[str]:
    """The pods of a gang whose claims are allocated."""
    names = (n for kind, n in bench.api.objects if kind == "resourceclaims")
    return sorted(n for n in names if n.startswith(f"{gang}-") and bench.devices(n))


def told(bench: Bench, name: str) -> str:
    """Message that was last said of a pod."""
    events = bench.recorder.events
    return [m for kind, about, _, m in events if (kind, about) == ("Pod", name)][-1]


def delete(bench: Bench, gang: str, *numbers: int) -> None:
    """Pods go, and their claims with them."""
    for number in numbers:
        name = f"{gang}-{number}"
        bench.remove_pod(name)
        bench.lose_claim(name)
    bench.run(seconds=1.0)


_NO = InvalidError("no", status=422)


def refuse(bench: Bench, name: str, error: KubeError = _NO) -> Callable[[], None]:
    """Have writes to a claim fail; returns what ends that."""
    refused, patch = {name}, bench.api.patch

    def checked(resource: Resource, name: str, body: Any, **options: Any) -> Obj:
        if resource is RESOURCE_CLAIMS and name in refused:
            raise error
        return patch(resource, name, body, **options)

    bench.api.patch = checked  # type: ignore[method-assign]
    return refused.clear


def grouped(bench: Bench, *numbers: int) -> None:
    for number in numbers:
        name = f"a-{number}"
        bench.ask(name, name, request("r", "mig-3g.20gb"), schedulingGroup={"podGroupName": "a"})


def group(count: int) -> Obj:
    return {
        "metadata": {"namespace": "default", "name": "a", "uid": "g", "resourceVersion": "1"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": count}}},
    }
