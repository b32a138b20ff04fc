"""Whatever has the structure of a manifest is linted and converted without a traceback."""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.cli.linting.conftest import Command

COUNT = int(os.environ.get("MANIFESTS", "150"))
"""Manifests to make up; ``MANIFESTS_OF`` names a directory with others to begin from."""

_AT_ONCE = 50
_POD = """
metadata: {annotations: {hami.io/gpu-scheduler-policy: spread, nvidia.com/vgpu-mode: mig}}
spec:
  resourceClaims: [{name: a, resourceClaimTemplateName: t}, {name: b, resourceClaimName: c}]
  schedulingGates: [{name: instaslice.redhat.com/accelerator}]
  schedulerName: hami-scheduler
  initContainers:
  - {name: i, restartPolicy: Always, resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 9}}}
  containers:
  - name: m
    envFrom: [{configMapRef: {name: 01234567-0123-0123-0123-0123456789ab}}]
    resources:
      limits: {mig.das.com/1g.5gb: 1, volcano.sh/vgpu-memory: 3k, nvidia.com/mig-1g.5gb: "2"}
      requests: {nvidia.com/mig-1g.5gb: 2}
      claims: [{name: a, request: slice}, {name: b}]
"""
_DEVICES = """
requests:
- {name: slice, exactly: {deviceClassName: mig-1g.5gb, count: 2, allocationMode: ExactCount}}
- name: other
  firstAvailable:
  - name: gpu
    deviceClassName: gpu.nvidia.com
    capacity: {requests: {gpu.nvidia.com/memory: 4Gi, shares: 2}}
    tolerations: [{key: a, operator: Exists}]
  - name: d
    deviceClassName: mine
    selectors: [{cel: {expression: device.driver == 'gpu.nvidia.com'}}]
constraints: [{requests: [slice], matchAttribute: gpu.nvidia.com/parentUUID}]
config:
- requests: [slice]
  opaque:
    driver: mig.dra.dev
    parameters:
      apiVersion: mig.dra.dev/v1alpha1
      kind: MigDeviceConfig
      placement: {policy: spread, nodes: {policy: binpack, by: [gpu-memory]}}
- opaque:
    driver: gpu.nvidia.com
    parameters:
      apiVersion: resource.nvidia.com/v1beta1
      kind: GpuConfig
      sharing: {strategy: MPS, mpsConfig: {defaultActiveThreadPercentage: 50}}
"""
_MANIFESTS = f"""
apiVersion: v1
kind: Pod
{_POD}
---
apiVersion: apps/v1
kind: Deployment
spec: {{replicas: 2, template: POD}}
---
apiVersion: batch/v1
kind: CronJob
spec: {{jobTemplate: {{spec: {{parallelism: 2, template: POD}}}}}}
---
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
spec: {{tasks: [{{replicas: 2, template: POD}}]}}
---
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
spec: {{predictor: {{containers: [{{resources: {{limits: {{nvidia.com/gpu: 1}}}}}}]}}}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {{name: c}}
spec: {{devices: DEVICES}}
---
apiVersion: resource.k8s.io/v1beta1
kind: ResourceClaimTemplate
metadata: {{name: t}}
spec: {{spec: {{devices: {{requests: [{{name: r, deviceClassName: mig.nvidia.com, count: 1}}]}}}}}}
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {{name: mine, annotations: {{mig.dra.dev/devices-per-namespace: "4"}}}}
spec: {{selectors: [{{cel: {{expression: device.driver == 'mig.dra.dev'}}}}], config: []}}
---
apiVersion: v1
kind: ResourceQuota
spec: {{hard: {{requests.nvidia.com/mig-1g.5gb: 2, nvidia.com/gpumem: 9}}}}
---
apiVersion: v1
kind: ConfigMap
data: {{config.yaml: "version: v1\\nmig-configs: {{a: [{{devices: all, mig-enabled: true}}]}}"}}
---
version: v1
mig-configs: {{a: [{{devices: [0], mig-enabled: true, mig-devices: {{1c.2g.10gb: 2}}}}]}}
---
apiVersion: mig.dra.dev/v1alpha1
kind: MigNodeClass
mode: layout
layouts: {{a: [{{devices: all, mig-enabled: true, mig-devices: {{1g.5gb: 7}}}}]}}
---
apiVersion: v1
kind: PodList
items: [{{apiVersion: v1, kind: Pod, metadata: {{}}, spec: {{containers: [{{name: a}}]}}}}]
"""
_OTHERS: tuple[Any, ...] = (
    None,
    True,
    -1,
    1.5,
    "",
    "a/b",
    [],
    {},
    [None],
    [[1]],
    {"a": None},
    {"a": ["b"]},
)


def manifests() -> list[Any]:
    parts = {"POD": yaml.safe_load(_POD), "DEVICES": yaml.safe_load(_DEVICES)}

    def put(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: put(each) for key, each in value.items()}
        if isinstance(value, list):
            return [put(each) for each in value]
        return copy.deepcopy(parts.get(value, value)) if isinstance(value, str) else value

    found = [put(each) for each in yaml.safe_load_all(_MANIFESTS)]
    for path in sorted(Path(os.environ.get("MANIFESTS_OF", "/nowhere")).rglob("*.y*ml")):
        try:
            documents = [*yaml.safe_load_all(path.read_text())]
        except (yaml.YAMLError, ValueError):
            continue
        found += [each for each in documents if each and isinstance(each, dict)]
    return found


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(pairs):
        yield value, key
        if isinstance(inner, dict | list):
            yield from places(inner)


def mutate(obj: Any, dice: random.Random) -> Any:
    made = copy.deepcopy(obj)
    for _ in range(dice.randint(1, 3)):
        if not (found := [*places(made)]):
            break
        holder, key = dice.choice(found)
        match dice.randrange(4):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, list):
                holder.append(copy.deepcopy(holder[key]))
            case 2:
                holder[key] = copy.deepcopy(dice.choice(dice.choice(found)[0:1]))
            case _:
                holder[key] = copy.deepcopy(dice.choice(_OTHERS))
    return made


def test_no_structure_ends_with_a_traceback(lint: Command, convert: Command) -> None:
    dice, known = random.Random(4), manifests()
    for _ in range(0, COUNT, _AT_ONCE):
        made = [mutate(dice.choice(known), dice) for _ in range(_AT_ONCE)]
        text = yaml.safe_dump_all(made)
        for command in (lint, convert):
            ran = command(text)
            assert ran.code in (0, 1), ran
            assert ran.out, text
