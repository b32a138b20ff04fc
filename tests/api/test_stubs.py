"""The generated code is that of the .proto files, and the .proto files are kubelet's contract."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from api.kubelet.dra.v1 import api_pb2 as dra_v1
from api.kubelet.dra.v1beta1 import api_pb2 as dra_v1beta1
from api.kubelet.dra_health.v1 import api_pb2 as health_v1
from api.kubelet.dra_health.v1alpha1 import api_pb2 as health_v1alpha1
from api.kubelet.pluginregistration.v1 import api_pb2 as registration_v1
from hack.generate_protos import ROOT, generate, proto_files


def generated(root: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(root)): p.read_bytes()
        for p in (root / "api/kubelet").rglob("api_pb2*")
        if p.suffix in {".py", ".pyi"}
    }


def test_what_is_checked_in_is_what_the_proto_files_generate(tmp_path: Path) -> None:
    generate(tmp_path)
    fresh, checked_in = generated(tmp_path), generated(ROOT)
    assert len(proto_files()) == 5
    assert sorted(fresh) == sorted(checked_in)
    stale = [name for name, content in fresh.items() if checked_in[name] != content]
    assert stale == [], "run python hack/generate_protos.py"


def floor(requirement: str) -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["optional-dependencies"]["kubeletplugin"]
    [found] = [r for r in wanted if re.split(r"[<>=]", r)[0] == requirement]
    return str(found.partition(">=")[2])


def test_the_lowest_versions_that_we_promise_to_run_with_are_those_of_the_generated_code() -> None:
    for name, content in generated(ROOT).items():
        text = content.decode()
        if name.endswith("_grpc.py"):
            [wanted] = re.findall(r"GRPC_GENERATED_VERSION = '([\d.]+)'", text)
            assert floor("grpcio") == wanted
        elif name.endswith("_pb2.py"):
            [wanted] = re.findall(r"Protobuf Python Version: ([\d.]+)", text)
            assert floor("protobuf") == wanted


@pytest.mark.parametrize(
    ("module", "service", "methods"),
    [
        (registration_v1, "pluginregistration.Registration", "GetInfo NotifyRegistrationStatus"),
        (
            dra_v1,
            "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
            "NodePrepareResources NodeUnprepareResources",
        ),
        (
            dra_v1beta1,
            "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin",
            "NodePrepareResources NodeUnprepareResources",
        ),
        (health_v1alpha1, "v1alpha1.DRAResourceHealth", "NodeWatchResources"),
        (health_v1, "v1.DRAResourceHealth", "NodeWatchResources"),
    ],
)
def test_services_have_the_names_that_kubelet_calls(
    module: object, service: str, methods: str
) -> None:
    [found] = module.DESCRIPTOR.services_by_name.values()  # type: ignore[attr-defined]
    assert found.full_name == service
    assert [m.name for m in found.methods] == methods.split()


def numbers(module: object, message: str) -> dict[str, int]:
    descriptor = module.DESCRIPTOR.message_types_by_name[message]  # type: ignore[attr-defined]
    return {f.name: f.number for f in descriptor.fields}


def test_messages_have_kubelets_field_numbers() -> None:
    device = {"request_names": 1, "pool_name": 2, "device_name": 3, "cdi_device_ids": 4}
    assert numbers(dra_v1, "Device") == device | {"share_id": 5}
    assert numbers(dra_v1beta1, "Device") == device
    for module in (dra_v1, dra_v1beta1):
        assert numbers(module, "Claim") == {"namespace": 1, "uid": 2, "name": 3}
        assert numbers(module, "NodePrepareResourceResponse") == {"devices": 1, "error": 2}
    assert numbers(registration_v1, "PluginInfo") == {
        "type": 1,
        "name": 2,
        "endpoint": 3,
        "supported_versions": 4,
    }
    for module in (health_v1, health_v1alpha1):
        assert numbers(module, "DeviceHealth") == {
            "device": 1,
            "health": 2,
            "last_updated_time": 3,
            "health_check_timeout_seconds": 4,
            "message": 5,
        }


def test_a_claim_is_the_same_bytes_that_kubelet_sends() -> None:
    # namespace "ns" = 1, uid "u" = 2, name "n" = 3, all length-delimited.
    assert dra_v1.Claim.FromString(b"\x0a\x02ns\x12\x01u\x1a\x01n") == dra_v1.Claim(
        namespace="ns", uid="u", name="n"
    )
