"""The validating webhook: what it answers, and how its certificates follow each other."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from controller.webhook.certificates import Served, make, renewed
from controller.webhook.review import review_config
from kubeletplugin.gpus.node import read_classes

DRIVER = "mig.dra.dev"
GOOD = {
    "apiVersion": "mig.dra.dev/v1alpha1",
    "kind": "MigDeviceConfig",
    "placement": {"policy": "spread"},
}
TENANTS = {**GOOD, "kind": "GpuConfig", "share": {"tenants": "any"}}
BAD = {**GOOD, "placement": {"policy": "cheapest"}}
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
LIFE = dt.timedelta(days=30)
NAMES = ("webhook.mig.svc", "127.0.0.1")


def review(kind: str, *parameters: object, driver: str = DRIVER) -> dict[str, Any]:
    entries = [{"opaque": {"driver": driver, "parameters": each}} for each in parameters]
    devices: dict[str, Any] = {"config": entries, "requests": []}
    spec = {
        "ResourceClaim": {"devices": devices},
        "ResourceClaimTemplate": {"spec": {"devices": devices}},
        "DeviceClass": {"config": entries},
        "Pod": {"config": entries},
    }[kind]
    return {
        "request": {
            "uid": "u1",
            "kind": {"kind": kind},
            "namespace": "" if kind == "DeviceClass" else "default",
            "object": {"kind": kind, "metadata": {"name": "one"}, "spec": spec},
        }
    }


def refusal(given: dict[str, Any]) -> str:
    response = review_config(given, driver=DRIVER)["response"]
    assert response["uid"] == "u1"
    assert response["allowed"] is False
    assert response["status"]["code"] == 422
    return str(response["status"]["message"])


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        ("ResourceClaim", "ResourceClaim default/one: spec.devices.config[1]"),
        ("ResourceClaimTemplate", "ResourceClaimTemplate default/one: spec.spec.devices.config[1]"),
        ("DeviceClass", "DeviceClass one: spec.config[1]"),
    ],
)
def test_a_bad_configuration_is_refused_with_object_field_and_remedy(kind: str, field: str) -> None:
    text = refusal(review(kind, GOOD, BAD))
    assert text.startswith(f"{field}.opaque.parameters.placement.policy: ")
    assert "'cheapest'" in text
    assert "'kind': 'MigDeviceConfig'" in text
    assert "config[0]" not in text


CLASS = """
apiVersion: mig.dra.dev/v1alpha1
kind: MigNodeClass
mode: {mode}
"""


def files(**data: str) -> dict[str, Any]:
    body = {"kind": "ConfigMap", "metadata": {"name": "classes"}, "data": data}
    return {
        "request": {
            "uid": "u1",
            "kind": {"kind": "ConfigMap"},
            "namespace": "mig",
            "object": body,
        }
    }


def test_a_file_of_node_classes_is_refused_with_the_words_of_the_node(tmp_path: Path) -> None:
    bad = CLASS.format(mode="fast")
    given = files(
        **{"default.yaml": bad, "good.yaml": CLASS.format(mode="whole"), "notes.txt": "["}
    )
    (tmp_path / "default.yaml").write_text(bad)
    told = read_classes(tmp_path).problems["default"]
    assert "field 'mode': 'fast' is not allowed; allowed are: on-demand, layout, whole" in told
    assert refusal(given) == f"ConfigMap mig/classes: data.{told}"
    assert "data.default.yaml: MigNodeClass: no YAML" in refusal(files(**{"default.yaml": "["}))
    good = review_config(files(**{"good.yaml": CLASS.format(mode="whole")}), driver=DRIVER)
    assert good["response"]["allowed"] is True


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        (None, "config[0].opaque.parameters: the parameters must be an object"),
        ({**GOOD, "placements": {}}, "config[0].opaque.parameters.placements: unknown field"),
        ({**GOOD, "kind": "VfioConfig"}, "not 'mig.dra.dev/v1alpha1' and 'VfioConfig'"),
        (TENANTS, "config[0].opaque.parameters.share.tenants: only a DeviceClass may say it"),
        ({**GOOD, "share": {"tenants": "any"}}, "share.tenants: only a DeviceClass may say it"),
        ({**GOOD, "share": {"memoryMiB": 0}}, "share.memoryMiB: Expected 'int' >= 1"),
    ],
)
def test_what_is_wrong_is_named(parameters: object, named: str) -> None:
    assert named in refusal(review("ResourceClaim", parameters))


def test_every_bad_configuration_of_an_object_is_named_at_once() -> None:
    text = refusal(review("ResourceClaim", BAD, GOOD, BAD))
    assert "config[0]" in text
    assert "config[2]" in text


@pytest.mark.parametrize(
    "given",
    [
        review("ResourceClaim", GOOD),
        review("DeviceClass", TENANTS),
        review("ResourceClaim"),
        review("ResourceClaim", BAD, driver="gpu.nvidia.com"),
        review("Pod", BAD),
        {"request": {"uid": "u1", "object": None}},
    ],
)
def test_everything_else_is_let_through(given: dict[str, Any]) -> None:
    assert review_config(given, driver=DRIVER)["response"] == {"uid": "u1", "allowed": True}


@pytest.mark.parametrize("given", [{}, {"request": None}, {"request": {}}])
def test_what_is_no_review_is_no_question(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="uid"):
        review_config(given, driver=DRIVER)


def serial(served: Served) -> int:
    return x509.load_pem_x509_certificate(served.certificate).serial_number


def after(part: float) -> dt.datetime:
    return START + LIFE * part


def test_a_certificate_is_kept_until_a_third_of_its_life_is_left() -> None:
    first = renewed(None, NAMES, now=START, lifetime=LIFE)
    assert renewed(first, NAMES, now=after(0.6), lifetime=LIFE) == first
    assert serial(renewed(first, NAMES, now=after(0.7), lifetime=LIFE)) != serial(first)


def test_authorities_are_trusted_until_they_end() -> None:
    first = renewed(None, NAMES, now=START, lifetime=LIFE)
    second = renewed(first, NAMES, now=after(0.7), lifetime=LIFE)
    assert first.authorities in second.authorities
    third = renewed(second, NAMES, now=after(1.4), lifetime=LIFE)
    assert first.authorities not in third.authorities
    authority, *_ = x509.load_pem_x509_certificates(third.authorities)
    x509.load_pem_x509_certificate(third.certificate).verify_directly_issued_by(authority)


@pytest.mark.parametrize(
    "before",
    [
        Served(b"", b"", b""),
        Served(b"no", b"certificate", b"at all"),
        make(("another.name",), now=START, lifetime=LIFE),
    ],
)
def test_what_cannot_be_served_is_replaced(before: Served) -> None:
    found = renewed(before, NAMES, now=START, lifetime=LIFE)
    names = x509.load_pem_x509_certificate(found.certificate).extensions
    alternative = names.get_extension_for_class(x509.SubjectAlternativeName).value
    assert alternative.get_values_for_type(x509.DNSName) == ["webhook.mig.svc"]
    assert len(alternative.get_values_for_type(x509.IPAddress)) == 1
