"""The rig of tests/kubeletplugin, for these tests too."""

from __future__ import annotations

from tests.kubeletplugin.conftest import folder, kubeconfig, make_rig, rig, variants

__all__ = ["folder", "kubeconfig", "make_rig", "rig", "variants"]
