"""The only image of a cluster without a registry: busybox, packed as an OCI layout."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

IMAGE = "localhost/busybox:test"
"""Its reference; pods must say imagePullPolicy Never or IfNotPresent."""

APPLETS = (
    *("sh", "sleep", "cat", "ls", "stat", "env", "echo", "touch", "id"),
    *("grep", "ln", "mkdir", "rm", "test", "[", "mkfifo", "mknod", "mv"),
)

_LAYER = "application/vnd.oci.image.layer.v1.tar"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def write_image(target: Path, *, busybox: Path, references: Sequence[str] = ()) -> None:
    """Writes an OCI image archive whose entry point sleeps for ever and whose PATH is /bin.

    Args:
        target: the archive, for `ctr images import`.
        busybox: a statically linked busybox.
        references: further names of the image, in full.
    """
    layer = _layer(busybox.read_bytes())
    config = _json(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": ["/bin/sleep", "1000000000"], "Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": _descriptor(_CONFIG, config),
            "layers": [_descriptor(_LAYER, layer)],
        }
    )
    named = [
        _descriptor(_MANIFEST, manifest) | {"annotations": {"io.containerd.image.name": each}}
        for each in (IMAGE, *references)
    ]
    with tarfile.open(target, "w") as archive:
        _add(archive, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _add(archive, "index.json", _json({"schemaVersion": 2, "manifests": named}))
        for blob in (layer, config, manifest):
            _add(archive, f"blobs/sha256/{_digest(blob).removeprefix('sha256:')}", blob)


def _layer(busybox: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for directory in ("bin", "dev", "etc", "proc", "sys", "tmp"):
            entry = tarfile.TarInfo(directory)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        _add(archive, "bin/busybox", busybox, mode=0o755)
        for applet in APPLETS:
            entry = tarfile.TarInfo(f"bin/{applet}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(entry)
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, name: str, content: bytes, *, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _descriptor(media_type: str, content: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": _digest(content), "size": len(content)}


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()
