"""The rig of tests/kubeletplugin, for these tests too."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.kubeletplugin.conftest import folder, kubeconfig, make_rig, rig, variants

__all__ = ["folder", "kubeconfig", "make_rig", "rig", "variants"]


@pytest.fixture(autouse=True)
def logs_again() -> Iterator[None]:
    """Logs that a test switched off in this process are on again after it."""
    yield
    logging.disable(logging.NOTSET)
