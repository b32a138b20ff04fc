"""Sharing as NVIDIA's software has it, converted to what it is here."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.cli.linting.conftest import Command

CLAIM = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: t}
spec:
  spec:
    devices:
      requests:
      - name: d
        exactly:
          deviceClassName: CLASS
          selectors:
          - cel: {expression: "device.attributes['gpu.nvidia.com'].architecture == 'Ampere'"}
      config:
      - requests: [d]
        opaque:
          driver: gpu.nvidia.com
          parameters:
            apiVersion: resource.nvidia.com/v1beta1
            kind: KIND
            sharing: SHARING
"""
"""As in demo/specs/quickstart of NVIDIA's DRA driver."""


def remarks(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if line.startswith("#"))


def claim(kind: str, sharing: str, *, name: str = "gpu.nvidia.com") -> str:
    return CLAIM.replace("CLASS", name).replace("KIND", kind).replace("SHARING", sharing)


LIMITS = (
    "{strategy: MPS, mpsConfig: {defaultActiveThreadPercentage: 50, "
    "defaultPinnedDeviceMemoryLimit: 10Gi}}"
)


@pytest.mark.parametrize(
    ("text", "name", "sharing"),
    [
        (
            claim("GpuConfig", "{strategy: TimeSlicing, timeSlicingConfig: {interval: Long}}"),
            "gpu.dra.dev",
            {"strategy": "TimeSlicing", "timeSlicing": {"interval": "Long"}},
        ),
        (
            claim("MigDeviceConfig", LIMITS, name="mig.nvidia.com"),
            "mig.dra.dev",
            {
                "strategy": "MPS",
                "mps": {"activeThreadPercentage": 50, "pinnedDeviceMemoryLimit": "10240Mi"},
            },
        ),
    ],
)
def test_a_claim_for_nvidias_driver_becomes_one_for_this(
    convert: Command, lint: Command, text: str, name: str, sharing: Any
) -> None:
    ran = convert(text)
    [template] = yaml.safe_load_all(ran.out)
    assert ran.code == 0
    devices = template["spec"]["spec"]["devices"]
    [request], [config] = devices["requests"], devices["config"]
    assert request["exactly"]["deviceClassName"] == name
    assert "device.attributes['mig.dra.dev']" in str(request)
    assert config["opaque"]["driver"] == "mig.dra.dev"
    assert config["opaque"]["parameters"]["sharing"] == sharing
    linted = lint(ran.out, "--strict")
    assert linted.code == 0, linted.out


BETA = """\
apiVersion: resource.k8s.io/v1beta1
kind: ResourceClaimTemplate
metadata: {name: t}
spec:
  spec:
    devices:
      requests:
      - name: a
        deviceClassName: mig.nvidia.com
        selectors:
        - cel: {expression: "device.attributes['gpu.nvidia.com'].profile == '1g.5gb'"}
      - {name: b, deviceClassName: mig.nvidia.com, count: 2}
      constraints:
      - {requests: [], matchAttribute: gpu.nvidia.com/parentUUID}
"""
"""As in demo/specs/quickstart/v1beta1/gpu-test4.yaml of the same."""


def test_a_class_that_stands_in_the_file_is_converted_with_its_claims(convert: Command) -> None:
    a_class = """---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: small.gpu.nvidia.com}
spec: {selectors: [{cel: {expression: "device.driver == 'gpu.nvidia.com'"}}]}
"""
    text = BETA.replace("mig.nvidia.com", "small.gpu.nvidia.com")
    ran = convert(text + a_class)
    assert ran.code == 0
    assert "device.driver == 'mig.dra.dev'" in ran.out
    assert "has no counterpart here" in convert(text).out


@pytest.mark.parametrize(
    ("text", "code", "told"),
    [
        (
            BETA.replace("v1beta1", "v1alpha2"),
            1,
            "write requests as in resource.k8s.io/v1 (NVIDIA's demo/specs/quickstart/v1)",
        ),
        (claim("MigDeviceConfig", "{strategy: TimeSlicing}"), 0, "no effect on slices there"),
        (
            claim("GpuConfig", "{strategy: MPS, mpsConfig: {multiUser: true}}"),
            1,
            "mpsConfig.multiUser: unknown field",
        ),
        (claim("VfioDeviceConfig", "{}"), 1, "allowed are: GpuConfig, MigDeviceConfig"),
        (claim("GpuConfig", "{}", name="vfio.gpu.nvidia.com"), 1, "has no counterpart here"),
    ],
)
def test_what_has_no_counterpart_is_told(convert: Command, text: str, code: int, told: str) -> None:
    ran = convert(text)
    assert (ran.code, told in remarks(ran.out)) == (code, True), ran.out
