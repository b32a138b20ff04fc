"""The cases of the embedded API server hold on a real one, which is where they come from."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hack.cluster.binaries import Binaries
from hack.cluster.controlplane import ADMIN, ControlPlane, Setup

REPOSITORY = Path(__file__).parents[3]
CONTROLLERS = (
    "garbage-collector-controller",
    "namespace-controller",
    "serviceaccount-controller",
)
"""Deletion and the default service account, without which there are no pods."""


@pytest.fixture
def quiet(binaries: Binaries, root: Path) -> Iterator[ControlPlane]:
    """Without the controllers that change or add to what the cases make."""
    home = root / "conformance"
    home.mkdir()
    with ControlPlane(
        binaries, home, setup=Setup(controllers=CONTROLLERS, scheduling=False)
    ) as control_plane:
        yield control_plane


@pytest.mark.timeout(600)
def test_the_cases_hold_on_a_real_api_server(quiet: ControlPlane) -> None:
    """In one run: it empties its namespaces at the end, and would wait for those of another."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n0", "-q", "tests/sim/conformance"],
        cwd=REPOSITORY,
        env={**os.environ, "CONFORMANCE_KUBECONFIG": str(quiet.kubeconfig(ADMIN))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
