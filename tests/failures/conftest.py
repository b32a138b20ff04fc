"""The rig of tests/kubeletplugin, for these tests too."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.failures.helpers.plant import Plant
from tests.failures.helpers.site import Site
from tests.failures.helpers.steps import StepRecorder, hooked
from tests.kubeletplugin.conftest import folder, kubeconfig, make_rig, rig, uninstalled, variants

__all__ = ["folder", "kubeconfig", "make_rig", "rig", "uninstalled", "variants"]


@pytest.fixture(autouse=True)
def logs_again() -> Iterator[None]:
    """Logs that a test switched off in this process are on again after it."""
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def recorder() -> Iterator[StepRecorder]:
    """Recorder of this process's steps."""
    with hooked(StepRecorder(in_process=True)) as recorder:
        yield recorder


@pytest.fixture
def plant(folder: Path, recorder: StepRecorder) -> Plant:
    """The program on a node without claims."""
    plant = Plant(Site.create(folder / "n"), recorder)
    plant.start()
    return plant
