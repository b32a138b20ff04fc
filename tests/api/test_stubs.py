"""The generated code is that of the .proto files."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

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
