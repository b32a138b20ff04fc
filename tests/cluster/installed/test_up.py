"""``python -m hack.cluster``: a cluster until it is ended, and nothing of it afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hack.cluster.binaries import NODE, Binaries
from hack.cluster.chart import NAMESPACE, REPOSITORY
from tests.docs.handbook.blocks import blocks


def hack_cluster(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "hack.cluster", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
    )


def exported(cluster: subprocess.Popen[str]) -> str:
    """The kubeconfig that it prints once it is ready."""
    assert cluster.stdout is not None
    for line in cluster.stdout:
        if line.startswith("export KUBECONFIG="):
            return line.strip().removeprefix("export KUBECONFIG=")
    raise AssertionError(cluster.communicate()[1])


def test_a_cluster_comes_up_with_the_driver_and_goes_without_a_trace(
    binaries: Binaries, root: Path
) -> None:
    if reason := binaries.missing(NODE):
        pytest.skip(reason)
    values = root / "values.yaml"
    values.write_text("logLevel: debug\n")
    before = processes_of(root)
    made = hack_cluster("--dir", str(root / "up"), "--nodes", "1", "--values", str(values))
    try:
        kubeconfig = exported(made)
        shown = kubectl(kubeconfig, "get", "mignodes", "--no-headers")
        assert shown.split()[:3] == ["worker-1", "2x", "A100-SXM4-40GB"]
        daemonset = kubectl(kubeconfig, "get", "daemonsets", "--all-namespaces", "--output=yaml")
        assert "--log-level=debug" in daemonset

        # The first pod of the handbook, on the network that pods have by default.
        (first,) = (
            b for b in blocks(REPOSITORY / "docs/first-pod.md") if "name: first-slice" in b.text
        )
        manifest = root / "first-slice.yaml"
        manifest.write_text(first.text)
        kubectl(kubeconfig, "apply", "-f", str(manifest))
        kubectl(kubeconfig, "wait", "--for=condition=Ready", "pod/first-slice", "--timeout=50s")
        assert "nvidia-cap" in kubectl(kubeconfig, "logs", "first-slice")
        kubectl(kubeconfig, "delete", "-f", str(manifest))

        # What the handbook has people attach where they report a fault.
        dumped = ("cluster-info", "dump", "--namespaces", NAMESPACE, "--output-directory")
        kubectl(kubeconfig, *dumped, str(root / "dump"))
        logs = {str(path): path.read_text() for path in (root / "dump").rglob("logs.txt")}
        for program in ("kubelet-plugin", "controller"):
            assert any(f"-{program}-" in n and " INFO " in text for n, text in logs.items())

        again = hack_cluster("--dir", str(root / "up"))
        assert "runs in" in again.communicate()[1]
        assert again.returncode == 1
    finally:
        made.terminate()
        errors = made.communicate()[1]
    assert made.returncode == 0, errors
    assert processes_of(root) == before


def processes_of(root: Path) -> list[str]:
    """The processes that name a directory of ours on their command line."""
    return sorted(
        entry.name
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and str(root / "up").encode() in _command(entry)
    )


def _command(entry: Path) -> bytes:
    try:
        return (entry / "cmdline").read_bytes()
    except OSError:
        return b""


def kubectl(kubeconfig: str, *arguments: str) -> str:
    program = Path(sys.executable).parent / "kubectl"
    done = subprocess.run(
        [str(program), "--kubeconfig", kubeconfig, *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="root is asked for first")
def test_what_is_missing_is_said_before_anything_starts(tmp_path: Path) -> None:
    where = tmp_path / "cluster"
    done = hack_cluster("--dir", str(where), KUBEBUILDER_ASSETS=str(tmp_path))
    said = done.communicate()[1]
    assert done.returncode == 1
    assert "no etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubelet" in said
    assert str(tmp_path) in said
    assert not where.exists()
