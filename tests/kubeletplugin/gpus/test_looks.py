"""Looks at GPUs that are asked for, and those that what was read back makes needless."""

from __future__ import annotations

from collections.abc import Collection

from kubeletplugin.gpus.looks import Looks
from kubeletplugin.journal.journalfile import EntryKey

A, B = ("uid-a", "gpu-0"), ("uid-b", "gpu-0")


def test_only_what_cannot_be_followed_is_looked_at() -> None:
    looked: list[str] = []
    followed: list[tuple[str, Collection[EntryKey]]] = []
    told: list[str] = []

    def follow(gpu: str, keys: Collection[EntryKey]) -> bool:
        followed.append((gpu, keys))
        return gpu == "GPU-1"

    looks = Looks(looked.append, follow=follow, on_read_back=lambda: told.append("changed"))
    looks.ask("GPU-1", [A])
    looks.ask("GPU-1", [B])
    looks.ask("GPU-2", [A])
    assert told == ["changed"] * 3
    looks.run()
    assert (looked, followed, looks.idle) == ([], [], False)
    looks.follow()
    assert followed == [("GPU-1", {A, B}), ("GPU-2", {A})]
    looks.run()
    assert (looked, looks.idle) == (["GPU-2"], True)
    looks.follow()
    assert len(followed) == 2
