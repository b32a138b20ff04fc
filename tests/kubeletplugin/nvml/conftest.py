from __future__ import annotations

from collections.abc import Iterator

import pytest

import sim.nvml
from kubeletplugin.nvml.session import Session
from sim.nvml.machine import Machine


@pytest.fixture
def session(machine: Machine) -> Iterator[Session]:
    """An open session with the simulated library of the test's ``machine``."""
    sim.nvml.install(machine.directory)
    session = Session()
    session.open()
    yield session
    machine.clear_faults()
    session.close()
