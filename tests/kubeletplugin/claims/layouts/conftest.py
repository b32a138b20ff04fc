"""A node with the files of layouts, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kubeletplugin.claims import layouts
from sim.nvml.machine import GpuSpec
from tests.kubeletplugin.claims.layouts.declared import A100, CLASS, FILE, label
from tests.kubeletplugin.helpers.rig import Rig


@pytest.fixture
def declare(
    make_rig: Callable[..., Rig],
    folder: Path,
    short_patience: None,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Rig]:
    """Builds a node that has FILE and CLASS, with labels; the plugin is started."""
    monkeypatch.setattr(layouts, "LAYOUT_GRACE_SECONDS", 0.0)

    def declare(*gpus: str, start: bool = True, **labels: str) -> Rig:
        rig = make_rig(*(GpuSpec(g) for g in gpus or (A100,)))
        rig.node_classes = folder / "classes"
        rig.node_classes.mkdir()
        (rig.node_classes / "default.yaml").write_text(CLASS)
        (rig.node_classes / "config.yaml").write_text(FILE)
        label(rig, **labels)
        if start:
            rig.start()
        return rig

    return declare
