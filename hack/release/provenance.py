"""Digests of a release's files, and the statement of what they were made from."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hack.cluster.driver.chart import version


def sums(files: Iterable[Path]) -> str:
    """The digests as ``sha256sum --check`` reads them."""
    return "".join(f"{digest(each)}  {each.name}\n" for each in sorted(files))


def digest(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def provenance(
    files: Iterable[Path], *, commit: str, dirty: bool, pins: Iterable[Path], base: str = ""
) -> dict[str, Any]:
    """An in-toto statement (v1) with SLSA's provenance (v1) for ``files``.

    It says what was built from what, and is worth as much as who signs it.

    Args:
        files: what was made.
        commit: of the source.
        dirty: whether the source had changes that are in no commit.
        pins: the files that name the packages.
        base: the image that those of ``files`` stand on, by digest; empty without images.
    """
    source = {"uri": "git+.", "digest": {"gitCommit": commit}}
    inputs = [{"uri": each.name, "digest": {"sha256": digest(each)}} for each in pins]
    if base:
        name, _, sha256 = base.partition("@sha256:")
        inputs.append({"uri": f"docker://{name}", "digest": {"sha256": sha256}})
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": f.name, "digest": {"sha256": digest(f)}} for f in sorted(files)],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "make release",
                "externalParameters": {"version": version(), "uncommittedChanges": dirty},
                "resolvedDependencies": [source, *inputs],
            },
            "runDetails": {
                "builder": {"id": f"python {sys.version.split()[0]}, {os.uname().machine}"}
            },
        },
    }
