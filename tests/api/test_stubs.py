"""The generated code is that of the .proto files, and the .proto files are kubelet's contract."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from api.kubelet.dra.v1 import api_pb2 as dra_v1
from api.kubelet.dra_health.v1 import api_pb2 as health_v1
from api.kubelet.dra_health.v1alpha1 import api_pb2 as health_v1alpha1
from api.kubelet.pluginregistration.v1 import api_pb2 as registration_v1
from api.kubelet.podresources.v1 import api_pb2 as pod_resources_v1
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
        (health_v1alpha1, "v1alpha1.DRAResourceHealth", "NodeWatchResources"),
        (health_v1, "v1.DRAResourceHealth", "NodeWatchResources"),
        (pod_resources_v1, "v1.PodResourcesLister", "List GetAllocatableResources"),
    ],
)
def test_services_have_the_names_that_kubelet_calls(
    module: object, service: str, methods: str
) -> None:
    [found] = module.DESCRIPTOR.services_by_name.values()  # type: ignore[attr-defined]
    assert found.full_name == service
    assert [m.name for m in found.methods] == methods.split()
