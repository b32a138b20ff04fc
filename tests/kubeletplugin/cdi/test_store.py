"""Spec files: whole or not there, one per claim, and nobody else's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cdi.files import write_durably
from cdi.spec import CdiError, Device, DeviceNode, Edits, Spec, claim_kind
from cdi.store import SpecStore

DRIVER = "mig.dra.dev"
UID = "6e7ef1ac-b2a9-452d-99bc-b39d821f3308"


def spec(minor: int = 0) -> Spec:
    node = DeviceNode(f"/dev/nvidia{minor}", major=195, minor=minor)
    return Spec(claim_kind(DRIVER), (Device(f"{UID}-gpu-{minor}", Edits(nodes=(node,))),))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "run/cdi"


@pytest.fixture
def store(root: Path) -> SpecStore:
    return SpecStore(root, DRIVER)


@pytest.mark.parametrize(
    "uid", ["", "..", "../x", "a/b", "/etc/passwd", "a\0b", "x" * 200, "a.yaml", "-a", "a\n"]
)
def test_a_uid_that_could_lead_out_of_the_directory_is_refused(
    store: SpecStore, root: Path, uid: str
) -> None:
    with pytest.raises(CdiError, match="is no UID"):
        store.write(uid, spec())
    with pytest.raises(CdiError, match="is no UID"):
        store.remove(uid)
    assert not root.exists()


def test_a_spec_that_breaks_a_rule_is_not_written(store: SpecStore, root: Path) -> None:
    with pytest.raises(CdiError, match="no devices"):
        store.write(UID, Spec(claim_kind(DRIVER), ()))
    with pytest.raises(CdiError, match="not this driver's"):
        store.write(UID, Spec("k8s.other/claim", spec().devices))
    assert not root.exists()


def test_the_sweep_removes_leftovers_of_ours_and_nothing_else(store: SpecStore, root: Path) -> None:
    store.write(UID, spec())
    others = [
        "k8s.gpu.example.com-claim_x.yaml",
        "nvidia.yaml",
        "k8s.mig.dra.dev-other_x.yaml",
        "k8s.mig.dra.dev-claim_x.json",
        "k8s.mig.dra.dev-driver.yaml",
        "k8s.mig.dra.dev2-claim_x.yaml",
    ]
    ours = ["k8s.mig.dra.dev-claim_gone.yaml", f"k8s.mig.dra.dev-claim_{UID}.yaml.k2x.tmp"]
    ours.append("k8s.mig.dra.dev-driver.yaml.17.tmp")
    for name in [*others, *ours]:
        (root / name).write_text("")
    assert sorted(p.name for p in store.sweep({UID})) == sorted(ours)
    assert sorted(p.name for p in root.iterdir()) == sorted([*others, store.path(UID).name])
    assert store.sweep({UID}) == []


def test_a_directory_that_cannot_be_used_is_named(store: SpecStore, root: Path) -> None:
    root.parent.mkdir(parents=True)
    root.write_text("a file")
    with pytest.raises(CdiError, match=f"cannot write CDI spec {root}"):
        store.write(UID, spec())
    with pytest.raises(CdiError, match=f"cannot remove CDI spec {root}"):
        store.remove(UID)


def test_no_temporary_name_is_one_that_a_runtime_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    sync = os.fsync

    def look(descriptor: int) -> None:
        seen.extend(p.name for p in tmp_path.iterdir())
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", look)
    write_durably(tmp_path / "a.yaml", b"x")
    assert seen[-1] == "a.yaml"
    assert all(not name.endswith((".yaml", ".json")) for name in seen[:-1])


def test_data_is_synced_before_the_name_and_the_directory_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    sync, replace = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        steps.append("directory" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file")  # noqa: PTH112
        sync(descriptor)

    def replaced(name: str, target: str) -> None:
        steps.append("rename")
        replace(name, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    write_durably(tmp_path / "a.yaml", b"x")
    assert steps == ["file", "rename", "directory"]
