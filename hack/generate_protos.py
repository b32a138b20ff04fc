"""Generate the gRPC and protobuf code of kubelet's plugin protocols from api/kubelet/**/*.proto.

Run ``python hack/generate_protos.py`` after changing a .proto file or grpcio-tools; a test compares
what is checked in with a fresh run.
"""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent


def proto_files() -> list[Path]:
    """Every .proto of the repository, relative to it, sorted."""
    return sorted(p.relative_to(ROOT) for p in (ROOT / "api/kubelet").rglob("*.proto"))


def generate(output: Path) -> None:
    """Write the generated modules below ``output``, in the same tree as the .proto files.

    Raises:
        RuntimeError: protoc refused a file; it has said why on standard error.
    """
    plugins = Path(sys.executable).parent
    arguments = [
        "protoc",
        f"--proto_path={ROOT}",
        f"--proto_path={files('grpc_tools') / '_proto'}",
        f"--plugin=protoc-gen-mypy={plugins / 'protoc-gen-mypy'}",
        f"--plugin=protoc-gen-mypy_grpc={plugins / 'protoc-gen-mypy_grpc'}",
        f"--python_out={output}",
        f"--grpc_python_out={output}",
        f"--mypy_out=quiet:{output}",
        f"--mypy_grpc_out=quiet:{output}",
        *(str(path) for path in proto_files()),
    ]
    status = protoc.main(arguments)
    if status != 0:
        raise RuntimeError(f"protoc failed with status {status}")


if __name__ == "__main__":
    generate(ROOT)
